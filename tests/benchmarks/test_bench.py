"""The benchmark compares equals, says so when it does not, and loses no number it has. Nothing here is timed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy.stats import kendalltau
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from robattr import cli, recipes
from robattr.attacks.maps import integrated_gradients, saliency
from robattr.bench import (
    evaluation,
    ifia,
    kendall,
    naive,
    profiling,
    quadrature,
    render,
    results,
    run,
    scaling,
    subjects,
    training,
)
from robattr.bench.agree import Disagreement, agree, within
from robattr.bench.counting import operations, peak_bytes
from robattr.bench.engine import How, attack_gradient, training_step, work_of_gradient, work_of_step
from robattr.bench.results import Agreement, Case, Comparison, Report, Roofline, Side, Table
from robattr.bench.subjects import Subject
from robattr.bench.timing import Rates, Times, side_by_side, timed
from robattr.engine import Step
from robattr.errors import InvalidInput, RobattrError
from robattr.evaluation import paper
from robattr.formula import IG, LinfBall, midpoint, right
from robattr.models import resnet, small_cnn, smooth
from robattr.objectives import spread

CPU, FP32, RATES = torch.device("cpu"), How("fp32", compiled=False), Rates(1e9, 1e9)


def tiny(model: nn.Module | None = None, *, n: int = 3) -> Subject:
    """Three images of 12×12, two attack steps, m = 4 (3 in the attack)."""
    torch.manual_seed(0)
    model = model or small_cnn(size=12)
    channels = 3 if isinstance(model, type(resnet(4, 1))) else 1
    high = 255.0 if channels == 3 else 1.0
    x, y = high * torch.rand(n, channels, 12, 12), torch.arange(n) % 3
    settings = replace(recipes.get("mnist/ig-norm"), attack_steps=2, m=4, m_attack=3, batch=n, eps=0.1 * high)
    start = LinfBall(settings.eps, (0.0, high)).start(x)
    return Subject("tiny", model.eval(), x, y, start, settings, (0.0, high))


NETS = {"cnn": lambda: small_cnn(size=12), "resnet": lambda: resnet(4, 1)}


@pytest.mark.parametrize("net", sorted(NETS))
def test_the_port_is_the_formula(net: str) -> None:
    it = tiny(NETS[net]().double())
    it = replace(it, x=it.x.double(), start=it.start.double())
    points = naive.right_ends(3)
    ours = IG(rule=right(3))(it.model, it.x, it.start, it.y)
    torch.testing.assert_close(naive.ig(it.model, it.x, it.start, it.y, points), ours, rtol=1e-9, atol=1e-12)
    fast, _ = attack_gradient(it, spread(3, rule=right), FP32)
    theirs = naive.attack_gradient(it.model, it.x, it.start, it.y, points)
    torch.testing.assert_close(fast(), theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("net", sorted(NETS))
def test_the_ports_step_is_the_engines(net: str) -> None:
    it = tiny(NETS[net]().double())
    it = replace(it, x=it.x.double(), start=it.start.double())
    rho = it.objective()
    fast, step = training_step(it, rho, FP32)
    worst = it.naive_attack()(it.model, it.x, it.y, it.start)
    torch.testing.assert_close(fast().worst, worst)
    ours, theirs = training.same_update(it, step, rho, naive.right_ends(it.run.m))
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


def test_a_timed_step_leaves_the_weights_alone() -> None:
    it = tiny()
    before = {name: p.clone() for name, p in it.model.state_dict().items()}
    fast, _ = training_step(it, it.objective(), FP32)
    fast()
    assert all(torch.equal(p, before[name]) for name, p in it.model.state_dict().items())
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in it.model.parameters())


@pytest.mark.parametrize("net", sorted(NETS))
def test_the_ports_map_and_twin_are_ours(net: str) -> None:
    it = tiny(NETS[net]())
    twin = naive.twin(it.model)
    torch.testing.assert_close(twin(it.x), smooth(it.model)(it.x), rtol=1e-5, atol=1e-6)
    ours = saliency(integrated_gradients(5), it.model, it.x, it.y)
    for i in range(len(it.x)):
        theirs = naive.saliency(it.model, it.x[i : i + 1], it.y[i : i + 1], naive.right_ends(5))
        torch.testing.assert_close(ours[i], theirs, rtol=1e-4, atol=1e-4)


def test_the_pair_formula_is_scipys() -> None:
    a, b = kendall.maps(60, 4)
    for x, y in zip(a, b, strict=True):
        assert float(naive.kendall_by_pairs(x, y)) == pytest.approx(kendalltau(x.numpy(), y.numpy()).statistic)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Subject:
    """Every case measures a tiny subject, with as little patience as possible."""
    it = tiny()
    for module in (training, ifia):
        monkeypatch.setattr(module, "subject", lambda *_, **__: it)
        monkeypatch.setattr(module, "side_by_side", lambda ways, device, **__: side_by_side(ways, device, repeats=1))
    monkeypatch.setattr(quadrature, "FINE", 16)
    monkeypatch.setattr(ifia, "N", 8)
    monkeypatch.setattr(ifia, "FINE", 64)
    monkeypatch.setattr(ifia, "paper", lambda name: replace(paper(name), k=20))  # of 144 pixels
    monkeypatch.setattr(run, "measured_rates", lambda *_: RATES)
    return it


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16 takes another path
def test_a_training_case_has_all_its_parts(small: Subject) -> None:
    case = training.measure("mini", CPU, "fp32", rates=RATES, quick=True)
    gradient, strict, loose = case.comparisons
    assert gradient.what == "attack gradient"
    assert strict.what.endswith("IG")
    assert loose.what.endswith("‖IG‖₁")
    for comparison in case.comparisons:
        assert comparison.ratio > 0
        assert sum(comparison.spent.values()) == pytest.approx(1)
        assert len(comparison.agreement) == 2
        assert all(a.measured <= a.allowed == 1e-3 for a in comparison.agreement)
        assert comparison.roofline is not None
        assert comparison.roofline.operations <= comparison.roofline.baseline_operations
    errors, strength, precisions, memory = case.tables
    assert [row[1] for row in errors.rows][:1] == ["right(4)"]
    assert strength.rows[1][2] > strength.rows[0][2]  # the adversary gains on its start
    assert 0 < precisions.rows[0][1] < 0.2
    whole, chunked = [row[1] for row in memory.rows], [row[2] for row in memory.rows]
    assert whole[-1] > 1.7 * whole[-2]  # grows with m
    assert chunked[-1] < 1.3 * chunked[-2]  # does not


def test_an_ifia_case_agrees(small: Subject) -> None:
    case = ifia.measure("mini", CPU, "fp32", rates=RATES, quick=True)
    as_many, as_accurate = case.comparisons
    assert as_accurate.what == "IFIA iteration, equal error of the map"
    for comparison in case.comparisons:
        assert [a.of for a in comparison.agreement] == [
            "attribution map, fp32",
            "attack direction, fp32",
            "gain lost by the first step, as timed (fp32)",
        ]
        assert comparison.roofline is not None
        assert 0 < comparison.roofline.operations <= comparison.roofline.baseline_operations
    assert as_accurate.roofline.operations < as_many.roofline.operations  # type: ignore[union-attr]
    lowest, errors = case.tables
    ends, points = (row for row in errors.rows)
    assert 0 < points[1] <= ends[1] < 1
    for _, alone, together in lowest.rows:
        assert alone == pytest.approx(together, abs=0.05)


def test_an_attack_that_steps_elsewhere_is_refused(small: Subject) -> None:
    ours, theirs = ifia._attack(small, replace(paper("fashion-mini"), k=20), 1, right(4))
    found = ifia._run(small, ours, "fp32")
    assert ifia._first_step(small, found, theirs, "fp32").measured <= 0.005
    turned = replace(found, perturbed=(2 * small.x - found.perturbed).clamp(0, 1))
    with pytest.raises(Disagreement, match="gain lost by the first step"):
        ifia._first_step(small, turned, theirs, "fp32")


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16 takes another path
def test_an_evaluation_case_attacks_every_image(monkeypatch: pytest.MonkeyPatch, small: Subject) -> None:
    monkeypatch.setattr(evaluation, "subject", lambda *_, **__: small)
    monkeypatch.setattr(
        evaluation, "paper", lambda name: replace(paper(name), k=20, eval_k=20, steps=2, N=3, repeats=2)
    )
    table, scores = evaluation.measure(CPU, "fp32", quick=True).tables
    assert [row[0] for row in scores.rows] == ["fp32", "bf16"]
    assert all(-1 <= value <= 1 for row in scores.rows for value in row[1:])
    for row, (name, points) in zip(table.rows, (("sg", 1), ("ig", 3)), strict=True):
        assert row[:5] == (name, len(small.x), 2, 2, points)
        assert row[5] > 0
        assert row[6] == pytest.approx(len(small.x) / row[5])


def test_kendall_rows_agree_with_scipy() -> None:
    rows = kendall.sized(40, 3, CPU, kendalltau, None, 1)
    assert [row.baseline.what for row in rows] == ["SciPy in a loop", "n × n formula, cpu"]
    assert all(row.agreement[0].measured < 1e-12 for row in rows)


def test_scaling_names_every_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "step_ms", lambda p, *_: float(p.m * p.steps * p.batch * p.size**2 * p.width))
    (table,) = scaling.measure(CPU, "fp32", quick=False).tables
    assert {row[0] for row in table.rows} == set(scaling.AXES)
    growth = {(row[0], row[1]): row[3] for row in table.rows}
    assert growth["size", 4 * scaling.CPU.size] == 16
    assert growth["width", 2 * scaling.CPU.width] == 2


def test_scaling_runs_a_step() -> None:
    assert scaling.step_ms(scaling.Point(m=2, steps=1, batch=2, size=8, width=2), CPU, "fp32") > 0


def corrupt(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    honest = getattr(naive, name)
    monkeypatch.setattr(naive, name, lambda *args, **named: 1.01 * honest(*args, **named))


@pytest.mark.parametrize("name", ["attack_gradient", "ig"])
def test_a_corrupted_side_is_an_error_and_no_number(name: str, monkeypatch: pytest.MonkeyPatch, small: Subject) -> None:
    corrupt(monkeypatch, name)
    with pytest.raises(Disagreement, match=r"disagree on the .* gradient, eager fp32: distance 0\.0"):
        training.compare_gradients(small, FP32, RATES)
    case = run.attempt("mini", lambda: training.measure("mini", CPU, "fp32", rates=RATES, quick=True))
    assert case.disagreed
    assert not case.comparisons


def test_a_corrupted_engine_is_found(monkeypatch: pytest.MonkeyPatch, small: Subject) -> None:
    honest = Step.__call__

    def off(self: Step, *args: object, **named: object) -> object:
        out = honest(self, *args, **named)  # type: ignore[arg-type]
        for p in self.model.parameters():
            p.grad = None if p.grad is None else 1.01 * p.grad
        return out

    monkeypatch.setattr(Step, "__call__", off)
    level = quadrature.Accuracy("IG", 2, 2)
    with pytest.raises(Disagreement, match="parameter gradient"):
        training.compare_steps(small, FP32, level, RATES)


def test_a_corrupted_map_is_found(monkeypatch: pytest.MonkeyPatch, small: Subject) -> None:
    honest = ifia.saliency
    monkeypatch.setattr(ifia, "saliency", lambda *args: honest(*args).roll(1, -1))
    with pytest.raises(Disagreement, match="attribution map"):
        ifia.measure("mini", CPU, "fp32", rates=RATES, quick=True)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nothing_agrees_with_nan(bad: float) -> None:
    good = torch.ones(3)
    with pytest.raises(Disagreement):
        agree("gradient", torch.tensor([1.0, bad, 1.0]), good, allowed=1e9)
    with pytest.raises(Disagreement):
        within("τ-b", bad, allowed=1e-9)
    assert agree("gradient", good, good, allowed=0.0).measured == 0.0


def test_equal_accuracy_is_measured() -> None:
    """On a smooth loss midpoints are of second order: fewer are as accurate, and many are far better."""
    it = tiny(nn.Sequential(nn.Flatten(), nn.Linear(144, 3)).double())
    it = replace(it, x=it.x.double(), start=it.start.double())
    found = quadrature.Quadrature(it)
    strict, loose = found.equal("IG"), found.equal("‖IG‖₁")
    assert 1 <= loose.m <= it.run.m
    for level in (strict, loose):
        assert found.errors(midpoint(level.m))[level.by] <= found.errors(right(it.run.m))[level.by]
        assert found.errors(midpoint(level.m_attack))[level.by] <= found.errors(right(it.run.m_attack))[level.by]
    errors = found.errors(midpoint(64))
    assert errors["completeness"] < 1e-3
    assert errors["IG"] < found.errors(right(64))["IG"] / 5


def test_operations_are_torchs_count() -> None:
    a, b = torch.rand(3, 5), torch.rand(5, 7)
    assert operations(lambda: a @ b) == 2 * 3 * 5 * 7
    it = tiny()
    x = it.x.clone().requires_grad_()
    with FlopCounterMode(display=False) as theirs:
        it.model(x).sum().backward()
    assert operations(lambda: it.model(x).sum().backward()) == theirs.get_total_flops()


def test_the_work_of_both_sides_is_counted_alike() -> None:
    """Operations are equal, and fewer where the first layer can be taken out of the sum over the nodes."""
    flat = tiny(nn.Sequential(nn.Flatten(), nn.Linear(144, 5), nn.Softplus(), nn.Linear(5, 3)))
    change, points = spread(3, rule=right), naive.right_ends(3)
    for it, fewer in ((flat, False), (tiny(), True)):
        ours = work_of_gradient(it, change, m=3, arithmetic="fp32")
        theirs = operations(lambda it=it: naive.attack_gradient(it.model, it.x, it.start, it.y, points))  # type: ignore[misc]
        assert (ours.operations < theirs) if fewer else (ours.operations == theirs)
    step = work_of_step(it, it.objective(), m=4, m_attack=3, arithmetic="fp32")
    assert step.operations > 2 * ours.operations
    floor = ours.over(Rates(operations=1e9, bytes=1e18), baseline=0.0)
    assert floor.bound == "operations"
    assert floor.floor_ms == pytest.approx(ours.operations / 1e6)


def test_peak_memory_is_what_is_alive() -> None:
    def two_alive() -> Tensor:
        a = torch.ones(1000)
        b = a + 1
        del a
        c = b * 2
        return c.sum()

    assert 8000 <= peak_bytes(two_alive, CPU) < 8100
    assert 4000 <= peak_bytes(lambda: torch.ones(1000).view(10, 100).add_(1), CPU) < 4100


def test_ways_are_interleaved_after_a_warm_up() -> None:
    order: list[str] = []

    def slow(name: str) -> None:
        order.append(name)
        torch.rand(300_000).sort()

    both = side_by_side([lambda: slow("a"), lambda: slow("b")], CPU, repeats=2)
    assert order[:4] == ["a", "a", "b", "b"]
    assert all(t.low <= t.ms <= t.high for t in both)
    assert timed(lambda: None, CPU, repeats=3).calls > 1
    assert Times(8.0, 4.0, 12.0, 5).per(4) == Times(2.0, 1.0, 3.0, 5)


def example(error: str = "") -> Report:
    """A report with one of everything."""
    times = Times(30.0, 29.0, 31.0, 7), Times(2.0, 1.9, 2.5, 7)
    roofline = Roofline(2e9, 1e6, 3e6, 9e9, floor_ms=0.5, kept_ms=0.25, bound="operations")
    comparison = Comparison(
        "attack gradient", Side("eager port", times[0]), Side("compiled", times[1]),
        (Agreement("gradient", 1e-6, 1e-3),), roofline, compile_s=12.5,
    )  # fmt: skip
    whole = Case("mnist", "batch 50", (comparison,), (Table("Errors", ("rule", "error"), (("right(50)", 0.0125),)),))
    failed = Case("flower", error=error) if error else Case("flower", notes=("the step runs eagerly",))
    return Report(
        "2024-01-02T03:04:05+00:00", "robattr bench --device cpu", "a CPU", "fp32", False, {"torch": "2.11"},
        {"operations": 1e12, "bytes": 1e11}, (whole, failed), 60.0,
    )  # fmt: skip


def test_a_report_survives_its_file(tmp_path: Path) -> None:
    report = example("RuntimeError: out of memory")
    path = tmp_path / "bench.json"
    path.write_text(report.to_json(), encoding="utf-8")
    assert results.read(path) == report
    plain = json.loads(path.read_text(encoding="utf-8"))
    assert set(plain) == {
        "schema", "date", "command", "device", "precision", "quick", "versions", "rates", "cases", "seconds",
    }  # fmt: skip
    assert plain["cases"][0]["comparisons"][0]["ratio"] == 15.0


def test_the_page_holds_every_number_and_every_failure() -> None:
    page = render.markdown([example("RuntimeError: out of memory")])
    for words in (
        "**15×**", "2024-01-02", "torch 2.11", "robattr bench --device cpu", "1 Tflop/s", "right(50)", "0.0125", "4×",
        "12.5", "**Failed, no numbers:** RuntimeError: out of memory",
    ):  # fmt: skip
        assert words in page, words
    assert "Note: the step runs eagerly" in render.markdown([example()])
    assert "in this order" not in page, "one number needs no order"
    case = example().cases[0]
    row = replace(case.comparisons[0], agreement=(Agreement("map", 1e-6, 1e-3), Agreement("first step", 0.1, 0.2)))
    twice = replace(example(), cases=(replace(case, comparisons=(row, row)),))
    assert render.markdown([twice]).count("Apart, in this order: map; first step.") == 1
    grids = [line for line in page.splitlines() if line.startswith("| attack gradient")]
    assert [line.count("|") - 1 for line in grids] == [len(render.HEADINGS), len(render.ROOFLINE)]


@pytest.mark.parametrize(
    ("floor", "kept", "spent", "says"),
    [
        (1.5, 0.1, {}, "1.33 times the floor of 1.5 ms: bound by arithmetic (arithmetic at full rate is 75% of"),
        (0.1, 1.2, {}, "bound by memory traffic"),
        (0.1, 0.1, {}, "traffic of kept activations 5%."),
        (0.1, 0.1, {"convolutions": 0.3, "everything between": 0.5, "matrix products": 0.2},
         "convolutions 30%, everything between 50%, matrix products 20%; so its products run at 10% of the rate"),
    ],
)  # fmt: skip
def test_the_reason_follows_from_counts_and_profile(floor: float, kept: float, spent: dict, says: str) -> None:
    comparison = example().cases[0].comparisons[0]
    assert comparison.roofline is not None
    changed = replace(comparison, roofline=replace(comparison.roofline, floor_ms=floor, kept_ms=kept), spent=spent)
    assert says in render.why(changed)


def test_a_profile_tells_kinds_apart() -> None:
    x = torch.rand(8, 3, 16, 16)
    conv, dense = nn.Conv2d(3, 8, 3), nn.Linear(256, 256)
    of_conv, of_dense = profiling.spent(lambda: conv(x), CPU), profiling.spent(lambda: dense(x.flatten(2)).relu(), CPU)
    for shares in (of_conv, of_dense):
        assert sum(shares.values()) == pytest.approx(1)
        assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert next(iter(of_conv)) == "convolutions"
    assert next(iter(of_dense)) == "matrix products"
    assert "convolutions" not in of_dense


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sm80_xmma_gemm_cf32cf32_f32f32_cf32_nt_n_tilesize64x32x8", "convolutions"),
        ("void fft2d_r2c_32x32<float, false, 1u, false>(float2*)", "convolutions"),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32", "matrix products"),
        ("triton_poi_fused_convolution_max_pool2d_with_indices_2", "everything between"),
        ("Memcpy DtoD (Device -> Device)", "copies"),
    ],
)
def test_kernels_by_name(name: str, kind: str) -> None:
    assert profiling.kind_of(name) == kind


@pytest.mark.parametrize(
    ("value", "shown"),
    [("right(5)", "right(5)"), (50, "50"), (0.012345, "0.0123"), (12345.6, "12,346"), (3.0, "3"), (1e-9, "1e-09")],
)
def test_numbers_are_short(value: str | float, shown: str) -> None:
    assert render.number(value) == shown


def test_a_failing_case_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch, small: Subject) -> None:
    def fail(*_: object, **__: object) -> Case:
        raise RuntimeError("out of memory\nand a long story")

    monkeypatch.setattr(training, "measure", fail)
    monkeypatch.setattr(kendall, "measure", lambda *_, **__: example().cases[0])
    heard: list[str] = []
    kept: list[results.Report] = []
    report = run.run(CPU, "fp32", cases=("mini", "kendall"), quick=True, progress=heard.append, keep=kept.append)
    assert [len(each.cases) for each in kept] == [1, 2]  # what a stop after the first would have left
    assert kept[-1] == report
    assert [case.error for case in report.cases] == ["RuntimeError: out of memory", ""]
    assert report.failed == report.cases[:1]
    assert report.cases[1].comparisons
    assert heard == ["measuring the device", "mini", "kendall"]
    assert report.command == "robattr bench --device cpu --case mini --case kendall --precision fp32 --quick"


def bench(*words: str) -> tuple[int, str, BaseException | None]:
    result = CliRunner().invoke(cli.app, ["bench", *words])
    return result.exit_code, result.output, result.exception


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--case", "mnst"), "did you mean 'mnist'"),
        (("--device", "gpu"), "unknown device 'gpu'"),
        (("--precision", "bf17"), "did you mean 'bf16'"),
        (("--render", "nowhere.json"), "cannot read nowhere.json"),
        (("-o", "page.md"), "expected --out with --render"),
    ],
)
def test_mistakes_are_named(words: tuple[str, ...], says: str, small: Subject) -> None:
    _, _, error = bench(*words)
    assert isinstance(error, RobattrError)
    assert says in str(error)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_gpu_is_named() -> None:
    with pytest.raises(InvalidInput, match="use --device cpu"):
        run.choose("cuda", None)
    assert run.choose("auto", None) == (CPU, "fp32")


@pytest.mark.parametrize("content", ["not json", "{}", '{"schema": 99}', "[]"])
def test_foreign_files_are_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=r"other\.json"):
        results.read(path)


def pretended(report: results.Report) -> Callable[..., results.Report]:
    """`run.run`, with nothing measured."""

    def fake(*_: object, keep: Callable[[results.Report], None], **__: object) -> results.Report:
        keep(report)
        return report

    return fake


def test_published_evaluations_are_rendered_with_their_own_clock(tmp_path: Path) -> None:
    settings = {"repeats": 3, "sweep": [[1.0, 2]], "steps": 100, "N": 50}
    summary = {
        "dataset": "mnist", "protocol": "strict", "map": "ig", "correct": 986, "excluded": 6, "settings": settings,
        "device": "A card", "precision": "tf32", "finished": "2026-11-15T10:04:11+00:00", "seconds": 153.9,
    }  # fmt: skip
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"schema": 1, "variant": "ig-norm-m5", "summary": summary}), encoding="utf-8")
    page = render.markdown([results.read(record), example()])
    (row,) = [line for line in page.splitlines() if "ig-norm-m5" in line]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        "mnist ig-norm-m5, strict", "ig", "980", "5", "100", "50", "A card, tf32", "2026-11-15", "**154**"
    ]  # fmt: skip
    assert page.index("Whole evaluations") < page.index(f"## {example().device}")
    assert "Whole evaluations" not in render.markdown([example()])
    half = {"schema": 1, "variant": "ig-norm-m5", "summary": {**summary, "earlier": 480}}
    record.write_text(json.dumps(half), encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"one command.*154 s do not count the 480 examples.*--fresh"):
        results.read(record)


def test_the_command_writes_and_renders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "run", pretended(example()))
    kept, page = tmp_path / "bench.json", tmp_path / "page.md"
    code, output, _ = bench("--device", "cpu", "--json", str(kept))
    assert code == 0
    assert "15×" in output
    assert bench("--render", str(kept), "-o", str(page))[0] == 0
    assert page.read_text(encoding="utf-8") == render.markdown([example()])


def test_the_command_fails_loudly_and_keeps_the_rest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "run", pretended(example("the engine and the eager port disagree")))
    kept = tmp_path / "bench.json"
    code, output, _ = bench("--device", "cpu", "--json", str(kept))
    assert code == 1
    assert "flower: the engine and the eager port disagree" in output
    assert results.read(kept).cases[0].comparisons
    code, output, _ = bench("--json", str(tmp_path / "no" / "bench.json"))
    assert code == 2
    assert "there is no directory" in output


def test_subjects_are_the_papers() -> None:
    it = subjects.subject("mini", CPU, batch=4)
    assert (it.run.m, it.run.m_attack, it.run.attack_steps, it.run.eps) == (50, 10, 20, 0.1)
    assert it.x.shape == (4, 1, 28, 28)
    x, _ = subjects.pictures(3, channels=3, size=32, high=255.0, device=CPU)
    assert x.shape == (3, 3, 32, 32)
    assert 0 <= float(x.min()) < float(x.max()) <= 255
