"""The results page: every section on invented numbers, and the committed page from the committed records."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_runs import fake_results, write_run
from results.render import PAGE, RESULTS, page, rendered
from results.sections import draw
from robattr.evaluation.protocol import STRICT_VERSION
from robattr.reporting.published import SIMPLE_GRADIENT
from robattr.reporting.run_results import RunResults, read_runs
from robattr.reporting.training_log import TrainingSummary

NATURAL = fake_results("natural", 0.46, 0.18, recipe="mnist/natural", nat=0.9917, adv=0.0)
SIMPLE = [row for row in SIMPLE_GRADIENT if row != ("flower", "madry")]
END = TrainingSummary(lines=7, loss=0.05, penalty=0.4, ig=0.25, val_accuracy=0.99)


def section(text: str, title: str) -> str:
    """A section up to the next heading of its level or above."""
    found = re.search(rf"^(##+) {re.escape(title)}.*?(?=^##? |\Z|^\1 )", text, flags=re.S | re.M)
    assert found, title
    return found.group()


def visible(text: str) -> str:
    return re.sub(r"<details.*?</details>", "", text, flags=re.S)


def test_the_tables_of_the_papers_networks() -> None:
    regularised = replace(fake_results("ig-norm", 0.7, 0.3, m=10, rule="radau", weight=1.0), training=END)
    second = fake_results("natural", 0.40, 0.18, recipe="mnist/natural", seed=1, precision="tf32")
    text = page([NATURAL, second, fake_results("madry", 0.48, 0.25, map_name="sg"), regularised])
    first = section(text, "Integrated gradients (the paper's table 1)")
    row = "| mnist | NATURAL | 99.17% [98.2, 100.2]<br>paper 99.17% | 0.00% [-1.0, 1.0]<br>paper 0.00% |"
    assert row in visible(first)
    assert "paper 71.36%" in first, "IG-NORM beside table 1, not beside ten right ends"
    assert "Not yet trained, or not yet evaluated: mnist Madry et al., IG-SUM-NORM; fashion-mnist NATURAL" in first
    assert "25.00% of a row's images" in first
    assert "| mnist | NATURAL [†](tried.md#mnist) | 1 | 98.50%" in first
    assert "40.00%" not in visible(first), "further seeds are folded"
    assert "| mnist | NATURAL | 1 | None | – | precision = tf32 (fp32) |" in first
    assert "| mnist | NATURAL | 0 | None | – | none |" in first
    assert "paper 47.95%" in section(text, "Simple gradient (the paper's table 3)")
    assert "| mnist | IG-NORM | 1 | 0.05 | 0.25 | 5 | 99.00% | 7 |" in text
    claims = section(text, "The paper's claims")
    assert "IG-NORM and IG-SUM-NORM have more robust attributions than NATURAL | **reproduced** (1 of 1 comp" in claims
    assert (
        "| 1 | paper | mnist | IG-NORM − NATURAL | reproduced | TopK Inter. +24.00 points [+24.00, +24.00]," in claims
    )
    assert "| 7 | m does not matter much | **not yet measured** | **not yet measured** |" in claims
    assert "(ineffective optimisation) | **reproduced in part** (0 of 1 comparisons, 7 not yet" in claims
    assert "Of 8 claims, under `paper`: 2 reproduced, 1 reproduced in part, 5 not yet measured." in claims
    assert "## The tuned networks" not in text


def test_rows_under_strict_have_the_noise_control_and_warnings() -> None:
    assert "`strict` |" not in section(page([NATURAL]), "Integrated gradients (the paper's table 1)")
    attacked = fake_results("natural", 0.3, 0.1, protocol="strict").evaluations
    attacked[0].summary["alarms"] = ["noise beats the attack"]  # type: ignore[index]
    both = replace(NATURAL, evaluations=(*NATURAL.evaluations, *attacked))
    strict = section(page([both, fake_results("madry", 0.6, 0.2)]), "Integrated gradients (the paper's table 1)")
    assert "| TopK Inter., `strict` | Rank Corr., `strict` |" in visible(strict)
    row = "0.1800 [0.170, 0.190]<br>paper 0.1758 | 30.00% [29.0, 31.0] ‡ | 0.1000 [0.090, 0.110] ‡ |"
    assert row in visible(strict)
    old = f"measured by strict, a weaker attack than strict v{STRICT_VERSION} (mnist: NATURAL)"
    assert f"‡ Doubts about `strict`: {old}." in visible(strict)
    attacked[0].summary["settings"]["version"] = STRICT_VERSION
    assert "‡" not in page([both])
    attacked[0].summary["flags"] = ["not converged"]  # type: ignore[index]
    assert "‡ Doubts about `strict`: not converged (mnist: NATURAL)." in section(page([both]), "The paper's claims")
    assert "paper 0.2422 | not yet | not yet |" in visible(strict)
    assert "| mnist | NATURAL | strict | ig | 1,000 | 90.00% [89.0, 91.0] | 30.00% [29.0, 31.0] |" in strict
    assert "| 90.00% [89.0, 91.0] | 0.8000 [0.790, 0.810] | 250 of 1,000 |" in strict
    assert "- mnist, strict, ig maps, NATURAL: noise beats the attack" in strict


def test_the_table_over_m_has_the_papers_values() -> None:
    swept = [fake_results("ig-norm", 0.68, 0.26, m=m, steps=5000) for m in (10, 20)]
    text = page([*swept, fake_results("ig-norm", 0.7, 0.3, m=50, steps=100_000)])
    over = section(text, "IG-NORM on MNIST over m (the paper's table 2)")
    assert "| m = 10 [†](tried.md#mnist) | 98.50% [97.5, 99.5]<br>paper 98.54% |" in over
    assert "paper 70.78%" in over
    assert "5,000 of the recipe's 100,000 steps" in over
    first = section(text, "Integrated gradients (the paper's table 1)")
    assert "68.00%" not in first
    assert "70.00% [69.0, 71.0]<br>paper 71.36%" in first
    assert "Not yet trained." in section(page([NATURAL]), "IG-NORM on MNIST over m (the paper's table 2)")


def test_what_the_network_does_and_what_the_objective_does() -> None:
    def scored(method: str, topk: float, dataset: str = "mnist", **config: Any) -> RunResults:
        run = fake_results(method, topk, 0.3, dataset=dataset, **config)
        (e,) = run.evaluations
        records = tuple({**r, "correct": True, "adv_correct": method != "natural"} for r in e.records)
        return replace(run, evaluations=(replace(e, records=records),))

    ours = {"model": "avgpool_cnn", "recipe": "mnist/x-tuned"}
    runs = [scored("natural", 0.40), scored("natural", 0.55, **ours), scored("natural", 0.50, seed=1, **ours)]
    runs += [scored("madry", 0.75, **ours), scored("ig-sum-norm", 0.80, m=3, **ours)]
    wide = {"dataset": "gtsrb", "model": "wide_resnet"}
    runs += [scored("natural", 0.30, **wide), scored("madry", 0.35, **wide)]
    text = page(runs)
    network = section(text, "What the network does")
    assert "| NATURAL on the tuned network − on the paper's network | 1 | +10.00 points | +0.0000 |" in visible(network)
    row = "| mnist | NATURAL on avgpool\\_cnn − on the paper's network | +10.00 points [+10.00, +10.00] | +0.0000"
    assert row in network
    objective = section(text, "What the objective does")
    assert "| Madry et al. − NATURAL on the tuned network | 2 | +5.00 to +20.00 points |" in visible(objective)
    assert "| gtsrb | Madry et al. − NATURAL on wide\\_resnet | +5.00 points [+5.00, +5.00]" in objective
    assert "| mnist | IG-SUM-NORM − Madry et al. on avgpool\\_cnn | +5.00 points" in objective
    assert "+100.00 points [+100.00, +100.00] |" in objective
    papers = section(text, "The paper's networks")
    assert "avgpool" not in papers
    assert "**reproduced" not in papers, "the tuned networks say nothing of the paper's claims"
    assert "Not yet measured." in section(page(runs[1:5]), "What the network does")


def test_figures_appear_as_they_are_drawn(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    runs = read_runs([write_run(tmp_path, m, dataset="fashion-mnist") for m in ("natural", "ig-norm")])
    assert "### Figures" not in page(runs, folder=tmp_path)
    draw("paper", runs, tmp_path)
    drawn = sorted(file.name for file in (tmp_path / "figures").iterdir())
    assert drawn[:2] == ["paper-eps-fashion-mnist.png", "paper-figure1-fashion-mnist.png"]
    text = section(page(runs, folder=tmp_path), "Figures")
    assert "![Maps before and after the attack, fashion-mnist](figures/paper-figure1-fashion-mnist.png)" in text
    assert "![Scores over the images, fashion-mnist](figures/paper-figure2-fashion-mnist.png)" in text


def test_the_seconds_of_a_resumed_evaluation_name_their_examples() -> None:
    run = fake_results("natural", 0.5, 0.2)
    summary = {**run.evaluations[0].summary, "seconds": 12.0, "earlier": 480}
    later = replace(run, evaluations=(replace(run.evaluations[0], summary=summary),))
    assert "12 s for the last 520 |" in section(page([later]), "Provenance")


def test_the_committed_page_is_up_to_date_and_its_links_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == rendered(), "make results"
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert len(links) > len(list(RESULTS.glob("*.json")))
    assert [link for link in links if not (PAGE.parent / link.partition("#")[0]).is_file()] == []


@pytest.mark.parametrize("dataset", ["mnist", "fashion-mnist", "gtsrb", "flower"])
def test_a_marked_row_finds_its_heading(dataset: str) -> None:
    tried = (PAGE.parent / "tried.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {dataset}$", tried, flags=re.M | re.I)


def test_the_sentence_below_a_table_names_what_differs() -> None:
    few = fake_results("madry", 0.6, 0.2, examples=500)
    few.evaluations[0].summary["never_kept"] = 0.0  # type: ignore[index]
    text = section(page([few]), "Integrated gradients (the paper's table 1)")
    assert "Test images: mnist 500.\n" in text
    both = section(page([NATURAL, few]), "Integrated gradients (the paper's table 1)")
    assert "Test images: mnist 1,000, 500. On at most 25.00% of a row's images" in both
    simple = section(page([fake_results(m, 0.6, 0.2, map_name="sg", dataset=d) for d, m in SIMPLE]), "Simple gradient")
    assert "Not yet trained, or not yet evaluated: flower Madry et al.\n" in simple
