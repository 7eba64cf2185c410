"""The rendered ablation and strength."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fake_runs import fake_results
from results.ablation import by_dataset, contributions, main, section
from results.strength import main as strength_main
from results.strength import render

RECORDS = [{"id": i, "attacks": {"paper": [0.6, 0.7], "rank 10-30": [0.5, 0.4]}} for i in range(2)]


def test_the_table_says_what_each_attack_adds() -> None:
    text = section("toy, mine", RECORDS)
    assert "| rank 10-30 | 2 | 50.00% | 0.4000 | 10.00 | 0.3000 | 2, 2 |" in text
    assert "| paper | 2 | 60.00% | 0.7000 | 0.00 | 0.0000 | 0, 0 |" in text


def test_records_of_an_evaluation_are_read(tmp_path: Path, capsys) -> None:
    file = tmp_path / "run" / "records" / "strict-ig.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps(r) + "\n" for r in RECORDS), encoding="utf-8")
    assert main([str(file)]) == 0
    assert "### run, strict-ig" in capsys.readouterr().out
    assert main([]) == 1


def test_what_beats_the_protocol_is_bold(tmp_path: Path, capsys) -> None:
    row = {"dataset": "toy", "run": "a_b", "examples": 3, "topk": 0.5, "kendall": 0.4}
    gains = {"adapted": {"topk": 0.0, "kendall": 0.02}, "10x": {"topk": 0.004, "kendall": 0.001}}
    rows = [{**row, "outside": gains}, {**row, "outside": {}}]
    text = render(rows)
    assert "| toy | a\\_b | 3 | 50.00% | 0.4000 | **0.00 / 0.0200** | 0.40 / 0.0010 |" in text
    assert text.endswith("| – | – |")
    file = tmp_path / "strength.json"
    file.write_text(json.dumps(rows), encoding="utf-8")
    assert strength_main(["--render", str(file)]) == 0
    assert capsys.readouterr().out.strip() == text
    with pytest.raises(SystemExit):
        strength_main([])


MIXED = [
    {"attacks": {"paper": [0.6, 0.7], "random": [0.8, 0.5], "rank": [0.5, 0.6]}},
    {"attacks": {"paper": [0.4, 0.7], "random": [0.9, 0.9], "rank": [None, None]}},
    {"correct": False},
]


def test_an_attack_adds_what_the_others_do_not_reach() -> None:
    found = {c.attack: c for c in contributions(MIXED)}
    assert list(found) == ["paper", "random", "rank"]
    assert found["paper"].wins == (1, 1)
    assert found["paper"].adds == pytest.approx(((0 + 0.5) / 2, (0 + 0.2) / 2))
    assert found["random"].wins == (0, 1)
    assert found["random"].adds == pytest.approx((0, 0.1 / 2))
    assert found["rank"].wins == (1, 0)
    assert found["rank"].alone == (0.5, 0.6)
    assert found["rank"].kept == 1
    assert contributions([{"correct": True}]) == []


def test_a_dataset_has_one_table_of_all_its_models() -> None:
    runs = [fake_results(method, 0.5, 0.3) for method in ("madry", "ig-norm", "natural")]
    assert by_dataset(runs) == ""
    for i in (0, 1):
        (e,) = runs[i].evaluations
        hard = replace(e, records=tuple(RECORDS), summary={**e.summary, "protocol": "strict"})
        runs[i] = replace(runs[i], evaluations=(e, hard))
    text = by_dataset(runs)
    assert "Madry et al. (ig), IG-NORM (ig), all examples together" in text
    assert text.count("| rank 10-30 | 4 | 50.00% |") == 1
    assert "NATURAL" not in text
