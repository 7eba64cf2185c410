"""The list of checks: rounding is not a dependence on the batch, and every error is raised as one sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from evaluation_fixtures import IG, TOY
from robattr.engine import precision
from robattr.errors import InvalidInput, UnsupportedModel
from robattr.evaluation import evaluate, scaled
from robattr.evaluation.checks import ModelProbe, check, examine, require


def probe(model: nn.Module, n: int = 8) -> ModelProbe:
    x = torch.rand(n, 6, generator=torch.Generator().manual_seed(0))
    return ModelProbe(model, x, None, (0.0, 1.0))


class Regrouped(nn.Module):
    """Adds in another order for a batch of one, as other kernels do; the offset amplifies the rounding."""

    def __init__(self, offset: float) -> None:
        super().__init__()
        self.linear, self.offset = nn.Linear(6, 3), offset

    def forward(self, x: Tensor) -> Tensor:
        z = self.linear(x)
        return z + (self.offset - self.offset) if len(x) == 1 else (z + self.offset) - self.offset


class Float32Regrouped(Regrouped):
    """As above, and does not run in float64."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float())


class Leaky(nn.Module):
    """Adds a share of the batch's mean."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.linear, self.share = nn.Linear(6, 3), share

    def forward(self, x: Tensor) -> Tensor:
        z = self.linear(x)
        return z + self.share * z.mean(0)


# The rounding of z + c is up to 2⁻²⁴·c: for c = 1e5 that is 6e-3, far above √u = 2.4e-4 of logits of size 1.
def test_rounding_of_other_batch_sizes_is_accepted() -> None:
    found = {c.name: c.level for c in examine(probe(Regrouped(1e5)))}
    assert found["independence"] == "ok"


@pytest.mark.parametrize("net", [Leaky(1.0), Leaky(1e-2), Float32Regrouped(1e5)], ids=lambda net: type(net).__name__)
def test_a_dependence_that_float64_does_not_remove_is_refused(net: nn.Module) -> None:
    with pytest.raises(InvalidInput, match=r"logits change by .* with the other examples in its batch: normalise"):
        require(probe(net))


def test_an_ordinary_network_passes_in_low_precision() -> None:
    net = nn.Sequential(nn.Linear(6, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 3))
    with precision("bf16", "cpu"):
        assert [c.level for c in examine(probe(net)) if c.name in ("determinism", "independence")] == ["ok", "ok"]


def test_what_the_model_raises_is_kept_as_the_cause() -> None:
    with pytest.raises(UnsupportedModel, match=r"takes examples of shape \(6,\) in float32") as refusal:
        require(probe(nn.Linear(5, 3)))
    assert isinstance(refusal.value.__cause__, RuntimeError)
    assert "\n" not in str(refusal.value)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_is_named(case, reentrant: bool) -> None:
    class Checkpointed(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(super().forward, x, use_reentrant=reentrant)

    net, x, y = case
    with pytest.raises(UnsupportedModel, match=r"without a second derivative .*, activation checkpointing"):
        check(Checkpointed(*net), x, y, list(range(len(x))), TOY)


def test_a_network_without_second_derivatives_may_be_the_target_of_a_transfer_attack() -> None:
    class Once(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x.detach().sum(1), x.detach()[:, 0]], dim=1)

    require(probe(Once()), differentiated=False)
    with pytest.raises(UnsupportedModel, match="cannot be differentiated in the input"):
        require(probe(Once()))


@pytest.mark.parametrize("ids", [[0, 0], [0], [-1, 0]])
def test_ids_must_be_different_and_one_per_example(ids: list[int]) -> None:
    p = probe(nn.Linear(6, 3), 2)
    with pytest.raises(InvalidInput, match="2 different ids"):
        check(p.model, p.x, torch.zeros(2).long(), ids, scaled("", pixels=6, bounds=p.bounds))


class Whitened(nn.Module):
    """Takes the mean and the spread of the batch, in eval mode too."""

    def forward(self, z: Tensor) -> Tensor:
        return (z - z.mean()) / z.std()


class Noisy(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return z + torch.randn_like(z)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda net, x, y: (nn.Sequential(net, nn.Softmax(dim=1)), x, y, TOY), "drop the softmax"),
        (lambda net, x, y: (net, 255 * x, y, TOY), r"expected inputs within the bounds \(0, 1\), got"),
        (lambda net, x, y: (net, x, y, replace(TOY, k=37)), "between 1 and the 36 pixels"),
        (lambda net, x, y: (net, x, y, replace(TOY, eval_k=0)), "between 1 and the 36 pixels"),
        (lambda net, x, y: (net, x, (net(x).argmax(dim=1) + 1) % 3, TOY), "none of the 12 examples"),
        (lambda net, x, y: (nn.Sequential(net, Noisy()), x, y, TOY), "two calls in eval mode return different logits"),
        (lambda net, x, y: (nn.Sequential(Whitened(), net), x, y, TOY), "with the other examples in its batch"),
        (
            lambda net, x, y: (net, x.where(x > 0, torch.nan), y, TOY),
            "expected finite x, got NaN or infinite values in",
        ),
    ],
)
def test_bad_input_is_refused(case, spoil, says: str) -> None:
    net, x, y, protocol = spoil(*case)
    with pytest.raises(InvalidInput, match=says):
        evaluate(net, x, y, protocol=protocol, map=IG)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"model": lambda z: z}, "model to be a Module, got function"),
        ({"y": [0, 1]}, r"y to be a Tensor, got list: use torch\.as_tensor"),
        ({"protocol": "paper"}, "protocol to be a Protocol, got str"),
        ({"map": "ig"}, "map to be a AttributionMap, got str"),
        ({"source": nn.Sequential(nn.Flatten(), nn.Linear(36, 2))}, "same 3 classes, got one of 2"),
        ({"source": nn.Sequential(nn.Flatten(), nn.Linear(35, 3))}, r"same examples, \(1, 6, 6\), got one that fails"),
    ],
)
def test_values_of_other_kinds_are_refused(case, wrong, says: str) -> None:
    given = {**dict(zip(("model", "x", "y"), case, strict=True)), "protocol": TOY, "map": IG, **wrong}
    with pytest.raises(InvalidInput, match=says):
        evaluate(**given)
