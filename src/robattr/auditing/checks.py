"""What can be wrong with a model before hours are spent on it. Each check is a function of the patient.

A check answers ok, warn (it works, but know this) or fail (it would crash, or yield wrong numbers), and what to do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from robattr.auditing.cost import chunk_that_fits, cost
from robattr.auditing.probe import Calls, Check, ModelProbe, Operators
from robattr.evaluation import protocol as protocols
from robattr.formula.ascent import grad_and_value
from robattr.formula.attribution import IG
from robattr.formula.network import bind, gradient, second_order
from robattr.formula.quadrature import midpoint
from robattr.formula.scalars import logit
from robattr.formula.sizes import l1
from robattr.models.smooth import TWINS, smooth

AUDITED = 100  # examples of an audit whose time is told
REPLACE = "replace the layer that has no second derivative (custom autograd function, activation checkpointing)"
LONG = 3600.0  # seconds after which a smaller audit is advised


def wrapping(p: ModelProbe) -> list[Check]:
    """torch.compile, data parallelism, SyncBatchNorm, half precision: undone in a copy."""
    found = [
        Check("form", "warn", note, "audit and harden do this by themselves; your model is not touched")
        for note in p.notes
    ]
    if any(isinstance(part, torch.jit.ScriptModule) for part in p.model.modules()):
        found.append(
            Check(
                "form", "fail", "the model is TorchScript: its activations have no smooth twin", "pass the eager module"
            )
        )
    return found or [Check("form", "ok", "a plain module with float32 weights and plain batch norm")]


def output(p: ModelProbe) -> list[Check]:
    """Logits of shape (B, classes), finite, the same for an example whatever its batch, the same when asked twice."""
    with second_order(p.subject), torch.no_grad():
        x = p.x.clone()
        out = p.subject(x)
        if not torch.equal(x, p.x):
            return [Check("output", "fail", "the model overwrites its input", "clone the input in forward()")]
        if out.dim() != 2 or len(out) != len(p.x) or out.shape[1] < 2:
            remedy = "return (B, classes); a single logit z becomes two classes as cat([0, z])"
            return [Check("output", "fail", f"expected logits (B, classes), got {tuple(out.shape)}", remedy)]
        again, alone = p.subject(p.x), p.subject(p.x[:1])
    if not out.isfinite().all():
        return [Check("output", "fail", "some logits are NaN or infinite", "check the weights and the input range")]
    slack = 1e-4 * float(out.abs().max() + 1e-9)
    checks = [Check("output", "ok", f"logits of {out.shape[1]} classes")]
    if not torch.allclose(out, again, rtol=1e-3, atol=slack):
        remedy = "pass training=self.training to F.dropout; switch off sampling at test time"
        checks.append(
            Check("determinism", "fail", "the model answers differently when asked twice, in eval mode", remedy)
        )
    elif not torch.allclose(out[:1], alone, rtol=1e-3, atol=slack):
        remedy = "set track_running_stats=True, or normalise per example"
        checks.append(Check("independence", "fail", "an example's answer depends on the others in its batch", remedy))
    return checks


def probabilities(p: ModelProbe) -> list[Check]:
    """Logits, not probabilities: cross-entropy would apply the softmax a second time, and gradients would vanish."""
    with second_order(p.subject), torch.no_grad():
        out = p.subject(p.x)
    if bool((out >= 0).all()) and torch.allclose(out.sum(1), torch.ones_like(out[:, 0]), atol=1e-3):
        return [Check("logits", "fail", "the outputs are probabilities (not negative, sum 1)", "drop the last softmax")]
    if torch.allclose(out.logsumexp(1), torch.zeros_like(out[:, 0]), atol=1e-3):
        said = "the outputs are log-probabilities: losses are right, but maps then explain log p, not the logit"
        return [Check("logits", "warn", said, "drop the last log-softmax")]
    said = f"they range from {float(out.min()):.3g} to {float(out.max()):.3g}"
    if float(out.min()) >= 0 and float(out.max()) <= 1:
        remedy = "if the last layer is a sigmoid, drop it: losses and maps are those of logits"
        return [Check("logits", "warn", f"{said}, as probabilities of a sigmoid do", remedy)]
    return [Check("logits", "ok", said)]


def modes(p: ModelProbe) -> list[Check]:
    """Dropout and batch norm in training mode are put to rest by robattr, not by other libraries."""
    awake = [
        m
        for m in p.model.modules()
        if m.training and isinstance(m, nn.modules.dropout._DropoutNd | nn.modules.batchnorm._BatchNorm)
    ]
    if awake:
        said = f"{len(awake)} dropout or batch-norm layers are in training mode"
        return [
            Check("modes", "warn", said, "robattr switches them to eval while it looks; call model.eval() elsewhere")
        ]
    return [Check("modes", "ok", "no dropout or batch norm is in training mode")]


def operations(p: ModelProbe) -> list[Check]:
    """In-place operations, fused attention, piecewise linear activations."""
    with second_order(p.subject), torch.no_grad():
        with Calls() as calls:
            p.subject(p.x[:2])
        with Operators() as operators:
            p.subject(p.x[:2])
    checks = []
    mutating = [name for name in operators.seen if name.endswith("_") and not name.startswith("_")]
    if mutating:
        said = f"values are overwritten by {', '.join(sorted(mutating)[:5])}"
        remedy = "fine here; Captum methods with hooks (DeepLift, GuidedBackprop) need inplace=False"
        checks.append(Check("in place", "warn", said, remedy))
    else:
        checks.append(Check("in place", "ok", "nothing is overwritten"))
    attention = any("scaled_dot_product" in getattr(f, "__name__", "") for f in calls.seen)
    attention |= any("attention" in n or "transformer" in n for n in operators.seen)
    if attention or any(isinstance(m, nn.MultiheadAttention) for m in p.model.modules()):
        checks.append(
            Check(
                "attention", "ok", "fused kernels have no second derivative; robattr runs the plain ones while it works"
            )
        )
    return checks


def gradients(p: ModelProbe) -> list[Check]:
    """The first derivative must not vanish, and the gradient of ‖IG(x, x')‖₁ in x' and in θ must exist."""
    x, y = p.x[:1], p.labels[:1]
    try:
        with second_order(p.subject):
            net = bind(p.subject).detach()
            first, _ = grad_and_value(lambda z: logit(net, z, y), allow_zero=True)(x)
        if not bool(first.any()):
            said = "the logit does not depend on the input: its gradient is exactly 0"
            remedy = "look for integer casts, argmax, detach() or no_grad() in forward()"
            return [Check("derivatives", "fail", said, remedy)]
        upward, inner = second_derivatives(p.subject, x, y, p.bounds)
    except Exception as cause:  # whatever an unknown layer raises is the finding
        reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        return [Check("derivatives", "fail", f"the second derivative cannot be computed: {reason}", REPLACE)]
    tensors = [first, upward, *inner]
    if not all(bool(t.isfinite().all()) for t in tensors):
        remedy = "look for sqrt or division at 0, and for half precision inside forward()"
        return [Check("derivatives", "fail", "a derivative is NaN or infinite", remedy)]
    if not inner:
        return [Check("derivatives", "warn", "no parameter takes part", "unfreeze some before you harden")]
    return [Check("derivatives", "ok", "first and second derivatives exist, in the input and in the weights")]


def second_derivatives(
    model: nn.Module, x: Tensor, y: Tensor, bounds: tuple[float, float]
) -> tuple[Tensor, list[Tensor]]:
    """The gradients of ‖IG(x, x')‖₁ in x' and in every parameter that takes part; raises what the model's layers do."""
    low, high = bounds
    x1 = (x + 0.01 * (high - low)).clamp(low, high)
    change = l1 @ IG(rule=midpoint(2))
    with second_order(model):
        net = bind(model)
        copies = {name: q.detach().clone().requires_grad_(q.requires_grad) for name, q in net.parameters.items()}
        upward, _ = grad_and_value(lambda z: change(net.detach(), x, z, y), allow_zero=True)(x1)
        with torch.enable_grad():
            # Through the whole graph: autograd.grad passes over nodes that would raise but lead to no parameter.
            change(net.with_parameters(copies), x, x1.requires_grad_(), y).sum().backward()
    return upward, [q.grad for q in copies.values() if q.grad is not None]


def activations(p: ModelProbe) -> list[Check]:
    """ReLU's second derivative is 0: an attack on maps takes its direction from the softplus twin instead."""
    x, y = p.x[:1], p.labels[:1]
    with second_order(p.subject), torch.no_grad(), Calls() as calls:
        p.subject(x)
    kinked = sum(count for f, count in calls.seen.items() if f in TWINS)
    own, twin = _curvature(p.subject, x, y), _curvature(smooth(p.subject), x, y)
    if kinked and twin:
        said = f"{kinked} ReLU-like activations: the attack takes its direction from their softplus twin (β = 1)"
        return [Check("curvature", "ok", said)]
    if own or twin:
        return [Check("curvature", "ok", "smooth activations: the attack follows the network itself")]
    said = "neither the network nor its softplus twin is curved: gradient maps cannot be moved, or clamp() hides a ReLU"
    return [Check("curvature", "warn", said, "write activations as relu, not as clamp(min=0) or maximum(u, 0)")]


def _curvature(model: nn.Module, x: Tensor, y: Tensor) -> bool:
    """Whether the second derivative of the logit is anything but 0 at x."""
    with second_order(model):
        net = bind(model).detach()
        v = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
        along = grad_and_value(
            lambda z: (gradient(lambda u: logit(net, u, y), z) * v).flatten(1).sum(1), allow_zero=True
        )
        return bool(along(x)[0].any())


def data_range(p: ModelProbe) -> list[Check]:
    """Do the data lie in the bounds, and do mean and std belong to the same units?"""
    low, high = p.bounds
    checks = []
    if p.real:
        least, most = float(p.x.min()), float(p.x.max())
        slack = 1e-5 * (high - low)
        said = f"the data range from {least:.4g} to {most:.4g}, the bounds are {low:g} to {high:g}"
        if least < low - slack or most > high + slack:
            hint = "the data look standardised: undo it and give mean and std" if least < 0 else "give the right bounds"
            checks.append(Check("range", "fail", said, hint))
        elif most - least < 0.02 * (high - low):
            checks.append(Check("range", "warn", said, "the data fill almost nothing of the bounds: are they scaled?"))
        else:
            checks.append(Check("range", "ok", said))
    if p.subject.preprocessed:
        with torch.no_grad():
            seen = p.subject.normalise(p.x)
        reach = float(seen.abs().max())
        if reach > 20:
            said = f"after (x − mean) / std the inputs reach {reach:.3g}"
            checks.append(Check("preprocessing", "warn", said, "give mean and std in the units of the data (bounds)"))
    elif p.real and high - low == 255 and not any(type(m).__name__ == "Standardise" for m in p.model.modules()):
        said = "inputs up to 255 reach the network as they are"
        checks.append(Check("preprocessing", "warn", said, "if it was trained on scaled inputs, give mean and std"))
    return checks


def accuracy(p: ModelProbe) -> list[Check]:
    """Labels within the outputs, and answers better than chance."""
    if p.y is None or not p.real:
        return []
    with second_order(p.subject), torch.no_grad():
        out = p.subject(p.x)
    if int(p.y.max()) >= out.shape[1]:
        said = f"the data have labels up to {int(p.y.max())}, the model has {out.shape[1]} outputs"
        return [Check("labels", "fail", said, "give the class names in the order of the outputs (classes)")]
    right = float((out.argmax(1) == p.y).double().mean())
    said = f"{right:.0%} of {len(p.y)} examples are classified correctly"
    if right <= max(1.5 / out.shape[1], 0.1):
        return [
            Check("labels", "warn", said, "no better than chance: check class order, bounds, mean and std, weights")
        ]
    return [Check("labels", "ok", said)]


def expense(p: ModelProbe) -> list[Check]:
    """Memory and time of one update of an IG objective, measured on one example."""
    plan = p.plan
    spent = cost(
        p.subject, p.x, p.labels,
        m=plan.m, m_attack=plan.m_attack, attack_steps=plan.attack_steps, batch=plan.batch,
    )  # fmt: skip
    said = (
        f"one update (batch {plan.batch}, m = {plan.m}, {plan.attack_steps} attack steps) takes about "
        f"{_duration(spent.seconds)} and {spent.peak / 2**30:.2g} of {spent.available / 2**30:.3g} GiB on {p.x.device}"
    )
    audit = _audit_time(p, spent.per_pass)
    if spent.fits:
        return [Check("cost", "ok", said), audit]
    chunk = chunk_that_fits(p.subject, p.x, m=plan.m, batch=plan.batch) or plan.m
    remedy = f"harden then holds {chunk} nodes at a time (chunk={chunk}); or lower the batch"
    return [Check("cost", "warn", said, remedy), audit]


def _audit_time(p: ModelProbe, per_pass: float) -> Check:
    """Every iterate of every restart of an audit's attack is a second-order pass over IG's points, and a plain one."""
    paper = protocols.scaled("", pixels=10, bounds=p.bounds)
    restarts = sum(n for _, n in protocols.strict(paper).sweep)
    passes = 1.3 * AUDITED * paper.steps * paper.N
    alone, both = (passes * per_pass * n for n in (paper.repeats, 2 * paper.repeats + restarts))
    said = f"{AUDITED} examples take about {_duration(alone)} (paper) or {_duration(both)} (both protocols)"
    if alone < LONG:
        return Check("audit", "ok", said)
    return Check("audit", "warn", said, "use a GPU, fewer examples, or --points 20 --steps 20 for a first look")


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0), ("s", 1.0)):
        if seconds >= 2 * size or (unit == "s" and seconds >= size):
            return f"{seconds / size:.3g} {unit}"
    return f"{1000 * seconds:.3g} ms"


FIRST: tuple[Callable[[ModelProbe], list[Check]], ...] = (wrapping, modes, output)
THEN: tuple[Callable[[ModelProbe], list[Check]], ...] = (
    probabilities,
    data_range,
    accuracy,
    operations,
    gradients,
)
LAST: tuple[Callable[[ModelProbe], list[Check]], ...] = (activations, expense)
