"""The benchmark's port is an independent implementation of robattr, and a case fails where the two sides differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from scipy.stats import kendalltau
from torch import nn

from benchmarks import __main__ as command
from benchmarks import ifia, kendall, measure, port, quadrature, scaling, training, workloads
from benchmarks.engine import Mode, attack_gradient, training_step, work_of_step
from benchmarks.measure import Disagreement, Rates, agree, operations, timed, within
from benchmarks.results import Times
from benchmarks.workloads import Workload
from robattr import recipes
from robattr.attacks import integrated_gradients
from robattr.attacks.maps import saliency
from robattr.engine import Step
from robattr.engine.compiled import traced
from robattr.evaluation import paper
from robattr.formula import IG, LinfBall, midpoint, right
from robattr.models import resnet, small_cnn, smooth
from robattr.objectives import spread

CPU, RATES, EAGER = torch.device("cpu"), Rates(1e9, 1e9), Mode("fp32", compiled=False)
NETS = {"cnn": lambda: small_cnn(size=12), "resnet": lambda: resnet(4, 1)}


def tiny(model: nn.Module | None = None, dtype: torch.dtype = torch.float32) -> Workload:
    """Three images of 12×12, two attack steps, m = 4 (3 in the attack)."""
    torch.manual_seed(0)
    model = (model or small_cnn(size=12)).to(dtype).eval()
    channels, high = (3, 255.0) if isinstance(model, type(resnet(4, 1))) else (1, 1.0)
    x, y = high * torch.rand(3, channels, 12, 12, dtype=dtype), torch.arange(3)
    config = replace(recipes.get("mnist/ig-norm"), attack_steps=2, m=4, m_attack=3, batch=3, eps=0.1 * high)
    return Workload("tiny", model, x, y, LinfBall(config.eps, (0.0, high)).start(x), config, (0.0, high))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Workload:
    """Every case measures the tiny workload, once."""
    work = tiny()
    for module in (training, ifia):
        monkeypatch.setattr(module, "workload", lambda *_, **__: work)
        monkeypatch.setattr(module, "timed", lambda *ways, device, **_: timed(*ways, device=device, repeats=1))
    monkeypatch.setattr(quadrature, "FINE", 16)
    monkeypatch.setattr(ifia, "N", 8)
    monkeypatch.setattr(ifia, "FINE", 64)
    monkeypatch.setattr(ifia, "paper", lambda name: replace(paper(name), k=20))
    monkeypatch.setattr(command, "measured_rates", lambda *_: RATES)
    return work


@pytest.mark.parametrize("net", sorted(NETS))
def test_the_port_is_the_formula(net: str) -> None:
    work = tiny(NETS[net](), torch.float64)
    points = port.right_ends(3)
    ours = IG(rule=right(3))(work.model, work.x, work.start, work.y)
    torch.testing.assert_close(port.ig(work.model, work.x, work.start, work.y, points), ours, rtol=1e-9, atol=1e-12)
    ours = attack_gradient(work, spread(3, rule=right), "fp32")
    theirs = port.attack_gradient(work.model, work.x, work.start, work.y, points)
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("net", sorted(NETS))
def test_the_ports_step_is_the_engines(net: str) -> None:
    work = tiny(NETS[net](), torch.float64)
    before = {name: p.clone() for name, p in work.model.state_dict().items()}
    rho = work.objective()
    fast, step = training_step(work, rho, EAGER)
    torch.testing.assert_close(fast().worst, work.port_attack()(work.model, work.x, work.y, work.start))
    ours, theirs = training.same_update(work, step, rho, port.right_ends(work.config.m))
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)
    assert all(torch.equal(p, before[name]) for name, p in work.model.state_dict().items()), "the rate is 0"


@pytest.mark.parametrize("net", sorted(NETS))
def test_the_ports_map_and_twin_are_ours(net: str) -> None:
    work = tiny(NETS[net](), torch.float64)
    torch.testing.assert_close(port.twin(work.model)(work.x), smooth(work.model)(work.x), rtol=1e-9, atol=1e-12)
    ours = saliency(integrated_gradients(5), work.model, work.x, work.y)
    for i in range(len(work.x)):
        theirs = port.saliency(work.model, work.x[i : i + 1], work.y[i : i + 1], port.right_ends(5))
        torch.testing.assert_close(ours[i], theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16 takes another path
def test_a_training_case_has_all_its_parts(small: Workload) -> None:
    case = training.measure("mini", CPU, "fp32", rates=RATES, quick=True)
    assert [c.what for c in case.comparisons] == [
        "training step, equal error of IG", "training step, equal error of ‖IG‖₁",
    ]  # fmt: skip
    for comparison in case.comparisons:
        assert sum(comparison.spent.values()) == pytest.approx(1)
        assert len(comparison.agreement) == 3
        assert comparison.roofline is not None
        assert 0 < comparison.roofline.operations <= comparison.roofline.baseline_operations
    errors, strength, precisions = case.tables
    assert errors.rows[0][1] == "right(4)"
    assert strength.rows[1][2] > strength.rows[0][2], "the adversary gains on its start"
    assert 0 < precisions.rows[0][1] < 0.2


def test_a_slow_port_is_timed_once(small: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    timed_together: list[int] = []

    def fake(*ways: Callable[[], object], device: torch.device, **_: object) -> list[Times]:
        timed_together.append(len(ways))
        return [Times(ms, ms, ms, 1) for ms in (1200.0, 2.0)[-len(ways) :]]

    monkeypatch.setattr(training, "timed", fake)
    case = training.measure("mini", CPU, "fp32", rates=RATES, quick=True)
    assert timed_together == [2, 1]
    assert [(c.baseline.times.ms, c.engine.times.ms) for c in case.comparisons] == [(1200.0, 2.0)] * 2


def test_what_names_no_precision_is_measured_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own convolutions on a GPU are in tf32, whose rounding is as large as the errors of the nodes."""
    found = []
    monkeypatch.setattr(training, "_measured", lambda *_, **__: found.append(torch.backends.cudnn.allow_tf32))
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = True
    try:
        training.measure("mini", CPU, "tf32", rates=RATES, quick=True)
        assert torch.backends.cudnn.allow_tf32
    finally:
        torch.backends.cudnn.allow_tf32 = before
    assert found == [False]


def test_an_ifia_case_agrees_with_the_port(small: Workload) -> None:
    case = ifia.measure("mini", CPU, "fp32", rates=RATES, quick=True)
    as_many, as_accurate = case.comparisons
    assert as_accurate.what == "IFIA iteration, equal error of the map"
    assert [a.of for a in as_many.agreement] == [
        "attribution map, fp32", "gain lost by the first step, as timed (fp32)",
    ]  # fmt: skip
    assert as_accurate.roofline.operations < as_many.roofline.operations  # type: ignore[union-attr]
    lowest, errors = case.tables
    (_, ends), (_, points) = errors.rows
    assert 0 < points <= ends < 1
    for _, alone, together in lowest.rows:
        assert alone == pytest.approx(together, abs=0.05)


def test_kendall_rows_agree_with_scipy() -> None:
    rows = kendall.compare(40, 3, CPU)
    assert [row.baseline.what for row in rows] == ["SciPy in a loop", "n × n formula, cpu"]
    a, b = kendall.maps(60, 4)
    for x, y in zip(a, b, strict=True):
        assert float(port.kendall_by_pairs(x, y)) == pytest.approx(kendalltau(x.numpy(), y.numpy()).statistic)


def test_scaling_doubles_one_axis_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scaling.step_ms(scaling.Size(m=2, steps=1, batch=2, size=8, width=2), CPU, "fp32") > 0
    monkeypatch.setattr(scaling, "step_ms", lambda p, *_: float(p.m * p.steps * p.batch * p.size**2 * p.width))
    (table,) = scaling.measure(CPU, "fp32", quick=True).tables
    assert [(row[0], row[3]) for row in table.rows if row[3] != 1] == [
        ("m", 2), ("steps", 2), ("batch", 2), ("size", 4), ("width", 2),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["attack_gradient", "ig"])
def test_a_corrupted_port_is_a_disagreement(name: str, monkeypatch: pytest.MonkeyPatch, small: Workload) -> None:
    honest = getattr(port, name)
    monkeypatch.setattr(port, name, lambda *args, **named: 1.01 * honest(*args, **named))
    case = command.attempt("mini", lambda: training.measure("mini", CPU, "fp32", rates=RATES, quick=True))
    assert case.error.startswith(
        "Disagreement: the engine and the eager port disagree on the attack gradient, eager fp32"
    )
    assert ": distance 0.0" in case.error
    assert not case.comparisons


def test_a_corrupted_engine_is_a_disagreement(monkeypatch: pytest.MonkeyPatch, small: Workload) -> None:
    honest = Step.__call__

    def off(self: Step, *args: object, **named: object) -> object:
        out = honest(self, *args, **named)  # type: ignore[arg-type]
        for p in self.model.parameters():
            p.grad = None if p.grad is None else 1.01 * p.grad
        return out

    monkeypatch.setattr(Step, "__call__", off)
    with pytest.raises(Disagreement, match="disagree on the parameter gradient, eager fp32"):
        training.compare_steps(small, EAGER, quadrature.Accuracy("IG", 2, 2), RATES)


def test_a_corrupted_map_is_a_disagreement(monkeypatch: pytest.MonkeyPatch, small: Workload) -> None:
    honest = ifia.saliency
    monkeypatch.setattr(ifia, "saliency", lambda *args: honest(*args).roll(1, -1))
    with pytest.raises(Disagreement, match="disagree on the attribution map, fp32"):
        ifia.measure("mini", CPU, "fp32", rates=RATES, quick=True)


def test_a_wrong_first_step_is_a_disagreement(small: Workload) -> None:
    ours, theirs = ifia.attacks(small, replace(paper("fashion-mini"), k=20), 1, right(4))
    found = ifia.run(small, ours, "fp32")
    turned = replace(found, perturbed=(2 * small.x - found.perturbed).clamp(0, 1))
    with pytest.raises(Disagreement, match="disagree on the gain lost by the first step"):
        ifia.first_step(small, turned, theirs, "fp32")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nothing_agrees_with_nan(bad: float) -> None:
    good = torch.ones(3)
    with pytest.raises(Disagreement, match="on the gradient: distance nan"):
        agree("gradient", torch.tensor([1.0, bad, 1.0]) - torch.tensor([0.0, bad, 0.0]), good, allowed=1e9)
    with pytest.raises(Disagreement, match="on the τ-b"):
        within("τ-b", bad, allowed=1e-9)
    assert agree("gradient", good, good, allowed=0.0).measured == 0.0


def test_equal_accuracy_is_measured() -> None:
    """The midpoint rule is of second order on a smooth loss, the right Riemann sum of first order."""
    work = tiny(nn.Sequential(nn.Flatten(), nn.Linear(144, 3)), torch.float64)
    found = quadrature.Quadrature(work)
    for level in (found.equal("IG"), found.equal("‖IG‖₁")):
        for m, reference in ((level.m, work.config.m), (level.m_attack, work.config.m_attack)):
            assert found.errors(midpoint(m))[level.by] <= found.errors(right(reference))[level.by]
    assert found.errors(midpoint(64))["IG"] < found.errors(right(64))["IG"] / 5


def test_operations_are_counted_the_same_on_both_sides() -> None:
    """Equal, and fewer for the engine where the first layer is taken out of the sum over the nodes."""
    a, b = torch.rand(3, 5), torch.rand(5, 7)
    assert operations(lambda: a @ b) == 2 * 3 * 5 * 7
    flat = tiny(nn.Sequential(nn.Flatten(), nn.Linear(144, 5), nn.Softplus(), nn.Linear(5, 3)))
    for work, fewer in ((flat, False), (tiny(), True)):
        counted = operations(lambda work=work: attack_gradient(work, spread(3, rule=right), "fp32"))
        args = work.model, work.x, work.start, work.y, port.right_ends(3)
        theirs = operations(lambda args=args: port.attack_gradient(*args))
        assert (counted < theirs) if fewer else (counted == theirs)
        m, m_attack = work.config.m, work.config.m_attack
        ours = work_of_step(work, work.objective(), m=m, m_attack=m_attack, arithmetic="fp32")
    floor = ours.roofline(Rates(operations=1e9, bytes=1e18), baseline=0.0)
    assert (floor.bound, floor.floor_ms) == ("operations", pytest.approx(ours.operations / 1e6))


def test_functions_are_timed_in_turns_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of our own: 0.5 ms per call, so that four calls make a sample."""

    def seconds_of(fn: Callable[[], object], device: torch.device, *, calls: int = 1) -> float:
        fn()
        return 5e-4 * calls

    monkeypatch.setattr(measure, "seconds_of", seconds_of)
    monkeypatch.setattr(measure, "SHORTEST", 2e-3)
    order: list[str] = []
    both = timed(lambda: order.append("a"), lambda: order.append("b"), device=CPU, repeats=2)
    assert order == ["a", "a", "b", "b", "a", "b", "a", "b"]
    assert both == [Times(pytest.approx(0.5), pytest.approx(0.5), pytest.approx(0.5), 2, 4)] * 2


def test_the_phases_of_a_compilation_are_timed() -> None:
    """Without generated code there are no kernels."""
    work = tiny()
    step = Step(work.model, compiled=True, backend=traced)
    with measure.compiling() as phases:
        step(work.objective(), work.x, work.y, start=work.start)
    assert set(phases) == {"eager", "trace", "first call", "check"}
    assert all(seconds > 0 for seconds in phases.values())
    assert sum(phases.values()) < step.seconds
    before = dict(phases)
    step(work.objective(), work.x, work.y, start=work.start)
    assert phases == before, "the functions are as they were"


def test_a_profile_tells_kinds_apart() -> None:
    x, conv, dense = torch.rand(8, 3, 16, 16), nn.Conv2d(3, 8, 3), nn.Linear(256, 256)
    of_conv, of_dense = (measure.profiled(f, CPU) for f in (lambda: conv(x), lambda: dense(x.flatten(2)).relu()))
    assert of_conv.shares["convolutions"] > 0
    assert of_dense.shares["matrix products"] > 0
    assert "convolutions" not in of_dense.shares
    assert sum(of_dense.shares.values()) == pytest.approx(1)
    calls = {name: launches for name, _, launches in of_dense.slowest}
    assert calls["aten::addmm"] == calls["aten::clamp_min"] == 1
    times = [ms for _, ms, _ in of_dense.slowest]
    assert times == sorted(times, reverse=True)
    assert of_dense.ms >= sum(times) * (1 - 1e-9) > 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sm80_xmma_gemm_cf32cf32_f32f32_cf32_nt_n_tilesize64x32x8", "convolutions"),
        ("void fft2d_r2c_32x32<float, false, 1u, false>(float2*)", "convolutions"),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32", "matrix products"),
        ("nvjet_sm90_tst_64x80_64x11_4x2_h_bz_NNT", "matrix products"),
        ("triton_poi_fused_convolution_max_pool2d_with_indices_2", "everything between"),
        ("Memcpy DtoD (Device -> Device)", "copies"),
    ],
)
def test_kernels_by_name(name: str, kind: str) -> None:
    assert measure.kind_of(name) == kind


def test_workloads_have_the_papers_settings() -> None:
    work = workloads.workload("mini", CPU, batch=4)
    config = work.config
    assert (config.m, config.m_attack, config.attack_steps, config.eps) == (50, 10, 20, 0.1)
    assert work.x.shape == (4, 1, 28, 28)
    x, _ = workloads.images(3, channels=3, size=32, high=255.0)
    assert x.shape == (3, 3, 32, 32)
    assert 0 <= float(x.min()) < float(x.max()) <= 255
