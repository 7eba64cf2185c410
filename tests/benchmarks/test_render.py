"""docs/benchmarks.md is what the stored results render to; a report survives its file."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import bars, kendall, render, training
from benchmarks.measure import Rates
from benchmarks.results import Agreement, Case, Comparison, Report, Roofline, Side, Table, Times, read


def example(error: str = "") -> Report:
    """A report with one of everything."""
    comparison = Comparison(
        "training step",
        Side("eager port", Times(30.0, 29.0, 31.0, 7)),
        Side("compiled", Times(2.0, 1.9, 2.5, 7)),
        (Agreement("map", 1e-6, 1e-3), Agreement("first step", 0.1, 0.2)),
        Roofline(2e9, 1e6, 3e6, 9e9, floor_ms=0.5, kept_ms=0.25, bound="operations"),
        compile_s=12.5,
    )
    errors = Table("Errors", ("rule", "error"), (("right(50)", 0.0125),))
    whole = Case("mnist", "batch 50", (comparison, comparison), (errors,))
    other = Case("flower", error=error) if error else Case("flower", notes=("the step runs eagerly",))
    return Report(
        "2024-01-02T03:04:05+00:00", "python -m benchmarks --device cpu", "a CPU", "fp32", False, {"torch": "2.11"},
        {"operations": 1e12, "bytes": 1e11}, (whole, other), 60.0,
    )  # fmt: skip


def test_the_page_is_rendered_from_the_stored_results() -> None:
    page = render.markdown([read(file) for file in render.FILES])
    assert page == render.PAGE.read_text(encoding="utf-8"), "run python -m benchmarks --render"


def test_the_page_shows_every_number_and_every_failure(tmp_path: Path) -> None:
    example("RuntimeError: out of memory").write(tmp_path / "bench.json")
    page = render.markdown([read(tmp_path / "bench.json")])
    for words in (
        "| mnist | a CPU | training step | 30 | 2 | **15×** |",
        "| mnist | training step | compiled | 29–31 | 1.9–2.5 | first step: 1.0e-01 (0.2) | 12.5 | 4 |",
        "2024-01-02, a CPU, fp32; torch 2.11. A matrix product runs at 1 Tflop/s, a copy at 100 GB/s.",
        "- mnist: batch 50",
        "## Failed, no numbers\n\n- flower, a CPU: RuntimeError: out of memory",
    ):  # fmt: skip
        assert words in page, words
    assert "- flower: the step runs eagerly" in render.markdown([example().plain()])


def step(ms: float, port: float, what: str = "training step, equal error of IG") -> Comparison:
    return Comparison(
        what, Side("port", Times(port, port, port, 3)), Side("compiled, tf32", Times(ms, ms, ms, 3)),
        (Agreement("map", 1e-6, 1e-3),),
        roofline=Roofline(1e9, 1e6, 1e6, 1e9, floor_ms=1.0, kept_ms=1.0, bound="operations"),
        compile_s=31.0, spent={"convolutions": 0.7, "everything between": 0.3}, kernels=40,
        compiling={"trace": 1.25, "kernels": 20.0},
    )  # fmt: skip


def test_bars_say_what_is_met_and_what_is_in_the_way() -> None:
    schedule = bars.schedule("gtsrb/ig-norm", 11.0, "compiled, bf16")
    assert schedule.rows[0][:2] == ("gtsrb/ig-norm", 70_000)
    assert schedule.rows[0][2] == pytest.approx(70_000 * 11.0 / 60_000)
    case = Case("gtsrb", "", (step(20.0, 1000.0), step(11.0, 1000.0, "training step, bf16")), (schedule,))
    audits = Table(bars.AUDITS, ("what", "value", "estimate"), (("second-order", 1400.0, 0.0), ("paper", 5.0, 11.0)))
    spent_on = Table(bars.SPENT, ("kind", "share"), (("matrix products", 0.25), ("convolutions", 0.6)))
    report = replace(example(), cases=(case, Case("resnet50", "", (), (audits, spent_on))))
    page = render.markdown([report.plain()])
    spent = "70% convolutions, 30% everything between"
    compiled = "40 kernels to generate and compile: 1.25 s trace, 20 s kernels"
    for row in (
        "| gtsrb | step, ratio to the port | ≥ 40× | 50× | yes |  |",
        f"| gtsrb | step | ≤ 12 ms | 20 ms | **no** | {spent}, 20 times the floor |",
        f"| gtsrb | compilation | ≤ 30 s | 31 s | **no** | {compiled} |",
        "| gtsrb | the paper's schedule, compiled, bf16 | ≤ 14 min | 12.8 min | yes |  |",
        "| resnet50 | second-order | ≥ 1,500 /s | 1,400 /s | **no** | 60% convolutions, 25% matrix products |",
        "| resnet50 | audit, paper | ≤ 6 min | 5 min | yes |  |",
        "| resnet50 | estimate of it, 11 min | within 2× | 2.20× | **no** |  |",
        "| vit_b_16 | audit, paper | ≤ 6 min | not yet |  |  |",
        "| resnet50 | audit, both | ≤ 20 min | not yet |  |  |",
    ):
        assert row in page, row
    assert "| resnet50 | audit, paper | ≤ 6 min | not yet" not in page
    quick = render.markdown([replace(report, quick=True).plain()])  # of other sizes: no measurement
    assert "| resnet50 | audit, paper | ≤ 6 min | 5 min" not in quick


def test_each_question_has_one_table_over_all_runs() -> None:
    """Tables of the same question from two runs are joined, one row per case."""
    errors = ("for", "rule", "who", "error of IG", "error of ‖IG‖₁", "error of completeness")
    tables = (
        Table("Growth of the cost", ("axis", "value", "ms", "times"), (("m", 10, 5.0, 1.0), ("m", 20, 8.0, 1.6))),
        Table("Peak memory of a step, 4 examples", ("m", "whole", "chunks"), ((5, 0.723, 0.723), (10, 1.4, 0.8))),
        Table("Reduced precision against fp32", ("precision", "error of IG"), (("bf16", 0.0125),)),
        Table("Relative quadrature errors", errors, (
            ("update", "right(50)", "reference", 0.1, 0.2, 0.3), ("update", "midpoint(50)", "as many", 0.4, 0.5, 0.6),
            ("attack", "right(5)", "reference", 0.7, 0.8, 0.9), ("attack", "midpoint(5)", "as many", 0.7, 0.8, 0.9),
        )),
        Table("Mean ‖IG(x, x*)‖₁ found", ("who", "saw", "found"), (("start", "–", 1.5), ("port", "right(5)", 2.5))),
    )  # fmt: skip
    runs = [replace(example(), device=d, cases=(Case("mini", tables=tables),)).plain() for d in ("A", "B")]
    page = render.markdown(runs)
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert len(headings) == len(set(headings)) == 6
    assert "| vit_b_16 | audit, both | ≤ 20 min | not yet |" in page
    for device in ("A", "B"):
        assert f"| {device} | m 10 → 20 | 5 → 8 | 1 → 1.6 |" in page
        assert f"| mini, {device} | 4 | 5 → 10 | 0.723 → 1.4 | 0.723 → 0.8 |" in page
        assert f"| mini, {device} | bf16 | 0.0125 |" in page
        assert f"| mini, {device} | reference | right(50) / right(5) | 0.1 | 0.2 | 2.5 |" in page
    assert "as many" not in page  # no adversary used it


def test_ways_to_compute_kendall_share_a_row() -> None:
    engine = Side("batched", Times(2.0, 1.9, 2.5, 7))
    found = tuple(
        Comparison(f"Kendall τ-b, {n} pixels", Side(way, Times(ms, ms, ms, 7)), engine)
        for n, way, ms in [
            ("784", "SciPy in a loop", 30.0),
            ("784", "SciPy on 16 cores", 3.0),
            ("9", "n × n, cpu", 1.0),
        ]
    )
    page = render.markdown([replace(example(), cases=(Case("kendall", comparisons=found),)).plain()])
    assert "| a CPU | 784 | 30 (15×) | 3 (1.5×) | – | **2** |\n| a CPU | 9 | – | – | 1 (0.5×) | **2** |" in page


def test_every_comparison_of_the_stored_results_is_on_the_page() -> None:
    page = render.PAGE.read_text(encoding="utf-8")
    shown = [c for file in render.FILES for case in read(file).get("cases", ()) for c in case["comparisons"]]
    assert len(shown) > 30
    for c in shown:
        times = (c["baseline"]["times"]["ms"], c["engine"]["times"]["ms"], c["ratio"])
        lines = [line for line in page.splitlines() if all(render.number(value) in line for value in times)]
        assert lines, (c["what"], times)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("right(5)", "right(5)"),
        (50, "50"),
        (0.012345, "0.0123"),
        (12345.6, "12,346"),
        (3.0, "3"),
        (1e-9, "1e-09"),
        (999.7, "1,000"),
        (math.nan, "nan"),
    ],
)
def test_numbers_are_short(value: str | float, shown: str) -> None:
    assert render.number(value) == shown


def test_an_evaluation_in_two_commands_is_refused() -> None:
    record = read(render.FILES[0])
    record["summary"]["earlier"] = 480
    with pytest.raises(ValueError, match=r"one command.*count the 480 examples.*--fresh"):
        render.markdown([record])


def test_files_of_another_schema_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(json.dumps({"schema": 99}))
    with pytest.raises(ValueError, match=r"expected a benchmark of schema 1, got schema 99 in .*other\.json"):
        read(tmp_path / "other.json")


def test_a_failing_case_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> Case:
        raise RuntimeError("out of memory\nand a long traceback")

    monkeypatch.setattr(command, "measured_rates", lambda *_: Rates(1e9, 1e9))
    monkeypatch.setattr(training, "measure", fail)
    monkeypatch.setattr(kendall, "measure", lambda *_, **__: example().cases[0])
    kept = tmp_path / "bench.json"
    assert command.main(["--device", "cpu", "--case", "mini", "--case", "kendall", "--quick", "--json", str(kept)]) == 1
    first, second = read(kept)["cases"]
    assert first["error"] == "RuntimeError: out of memory"
    assert second["comparisons"][0]["ratio"] == 15.0
    assert read(kept)["command"] == (
        "python -m benchmarks --device cpu --case mini --case kendall --precision fp32 --quick"
    )
    assert "**15×**" in capsys.readouterr().out
    page = tmp_path / "page.md"
    assert command.main(["--render", str(kept), "-o", str(page)]) == 0
    assert page.read_text(encoding="utf-8") == render.markdown([read(kept)])


def test_a_fall_back_to_eager_mode_becomes_a_note() -> None:
    def measure() -> Case:
        warnings.warn("the attack gradient could not be compiled and runs eagerly", stacklevel=1)
        return Case("mini")

    notes = command.attempt("mini", measure).notes
    assert notes == ("the attack gradient could not be compiled and runs eagerly",)
