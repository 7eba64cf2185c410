"""The page without a browser: content, escaping, and no references to anything outside."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from fake_runs import change, write_run
from robattr.errors import InvalidInput
from robattr.metrics.columns import COLUMN
from robattr.reporting.export import write_records
from robattr.reporting.figures import PALETTE
from robattr.reporting.groups import group_evaluations
from robattr.reporting.html import _commands, embedded, page, write_page
from robattr.reporting.run_results import read_runs

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"


def test_a_folder_is_refused_as_the_page(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"report\.html"):
        write_page(read_runs(runs[:1]), tmp_path)


def test_a_model_evaluated_on_another_dataset_is_named_so(tmp_path: Path, undrawn) -> None:
    runs = [write_run(tmp_path, method) for method in ("natural", "madry")]
    file = runs[0] / "records" / "paper-ig.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "dataset": "mnist"}))
    written = page(read_runs(runs))
    tables = re.findall(r'<table class="results">(.*?)</table>', written, re.S)
    assert [re.findall(r'<tr><th scope="row">(.*?)</th>', made) for made in tables] == [
        ["NATURAL, trained on fashion-mini"],
        ["Madry et al."],
    ]


def test_each_training_dataset_has_its_own_charts(tmp_path: Path, undrawn) -> None:
    runs = [write_run(tmp_path / name, "natural", dataset=name, gallery=False) for name in ("mnist", "gtsrb")]
    written = page(read_runs(runs))
    trained = written[written.index('id="training-title"') : written.index('id="settings-title"')]
    assert re.findall(r"<h3>(.*?)</h3>", trained) == ["gtsrb", "mnist"]
    assert trained.count('<svg class="chart"') == 6  # of each its loss, regulariser and accuracy


def test_the_command_on_a_page_of_records_names_existing_files(runs: list[Path], tmp_path: Path) -> None:
    write_records(read_runs(runs[:2]), tmp_path)
    read = read_runs([tmp_path, runs[2]])
    (line,) = (line for line in _commands(read) if line.startswith("robattr report"))
    records = ["fashion-mini-natural-seed0-paper-ig.json", "fashion-mini-madry-seed0-paper-ig.json"]
    assert line.split()[2:-2] == [*records, "ig-norm"]
    assert all((tmp_path / record).is_file() for record in records)


def test_a_page_does_not_contain_absolute_paths(tmp_path: Path, undrawn) -> None:
    for number, method in enumerate(("natural", "madry")):
        run = write_run(tmp_path / "secret" / "runs", method, gallery=False)
        for name, key in (("config", "warm_start"), ("environment", "command"), ("records/paper-ig", "command")):
            file = run / f"{name}.json"
            words = f"robattr evaluate {run} --seed {number}" if key == "command" else str(run)
            file.write_text(json.dumps({**json.loads(file.read_text()), key: words}))
    written = page(read_runs(sorted((tmp_path / "secret" / "runs").iterdir())))
    assert "secret" not in written
    assert "robattr evaluate runs/natural --seed 0" in written


def test_the_scores_stand_beside_noise_and_ties_and_every_column_is_explained(runs: list[Path], undrawn) -> None:
    written = page(read_runs(runs))
    headings = re.findall(r'<th scope="col">(.*?)</th>', written[written.index("<thead>") : written.index("</thead>")])
    wanted = ("topk", "noise_topk", "kendall", "noise_kendall", "ceiling")
    assert [COLUMN[key].title for key in wanted] == headings[3:8]
    meanings = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", written))
    assert all(len(meanings[heading]) > 30 for heading in headings[1:])
    noise = json.loads((runs[0] / "records" / "paper-ig.json").read_text())["columns"]["noise_topk"]["value"]
    assert f">{100 * noise:.2f}%<" in written


def test_curves_and_controls_have_a_contrast_of_three_to_one() -> None:
    """WCAG 1.4.11, which axe does not check."""
    css = (files("robattr.reporting") / "page" / "page.css").read_text("utf-8")
    shades = {name: pair for name, *pair in re.findall(r"--(\w+): light-dark\((#\w+), (#\w+)\)", css)}
    for name in ("edge", "accent", *(f"s{i}" for i in range(len(PALETTE)))):
        assert all(contrast(*pair) >= 3 for pair in zip(shades[name], shades["bg"], strict=True)), name


def contrast(one: str, other: str) -> float:
    """(L₁ + 0.05) / (L₂ + 0.05) of the relative luminances, the lighter colour first."""
    levels = []
    for colour in (one, other):
        rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
        levels.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)
    return max(levels) / min(levels)


def test_a_chart_says_its_numbers_to_a_screen_reader(runs: list[Path], undrawn) -> None:
    written = page(read_runs(runs[:1]))
    scores = [json.loads(line)["topk"] for line in (runs[0] / "records" / "paper-ig.jsonl").read_text().splitlines()]
    median = np.median([score for score in scores if score is not None])
    assert f'aria-label="TopK Inter. (k = 100): NATURAL median {median:.2f}, quartiles' in written
    assert re.search(r'aria-label="Rank Corr\. against radius ε: NATURAL 0\.\d+ at 0.025, ', written)
    assert 'aria-label="loss ℓ (log scale) against training step: NATURAL' in written
    assert '"titles":{"topk":"TopK Inter.","kendall":"Rank Corr."}' in written  # of the explorer


class Elements(HTMLParser):
    """Collects tags with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_refers_to_nothing_outside_itself(runs: list[Path]) -> None:
    parser = Elements()
    parser.feed(page(read_runs(runs)))
    addresses = [a[k] for _, a in parser.found for k in ("src", "href", "action", "srcset") if k in a]
    assert addresses
    assert all(address and address.startswith(("#", "data:")) for address in addresses)
    assert sum(tag == "script" for tag, _ in parser.found) == 2
    assert not [name for _, a in parser.found for name in a if name.startswith("on")]


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    run = write_run(tmp_path, "natural", classes=(HOSTILE, "b", "c"))
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "method": HOSTILE, "note": HOSTILE}))
    html = page(read_runs([run]), title=HOSTILE)
    parser = Elements()
    parser.feed(html)
    assert sum(tag == "script" for tag, _ in parser.found) == 2
    assert not any(tag == "img" for tag, _ in parser.found)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert data is not None
    assert json.loads(data.group(1))["groups"][0]["classes"][0] == HOSTILE


def test_embedded_json_cannot_leave_its_element() -> None:
    value = {"a": "</script><!--\u2028&", "b": [None, 1.5]}
    text = embedded(value)
    assert not set("<>&") & set(text)
    assert json.loads(text) == value


def test_charts_show_some_of_many_runs_and_tables_all(runs: list[Path], tmp_path: Path, monkeypatch, undrawn) -> None:
    """A chart of a thousand curves takes minutes to draw, and nobody can read it."""
    for module in ("groups", "html"):
        monkeypatch.setattr(f"robattr.reporting.{module}.MOST_SHOWN", 4)
    for number in range(7):
        copied = shutil.copytree(runs[number % 2], tmp_path / f"run{number}")
        change(copied / "config.json", seed=number)
    read = read_runs(tmp_path.iterdir())
    (group,) = group_evaluations(read)
    shown = group.shown().members
    assert (len(group.members), len(shown)) == (7, 4)
    seeds = {method: [r.config["seed"] for r, _ in shown if r.method == method] for method in ("natural", "madry")}
    assert seeds == {"natural": [0, 2], "madry": [1, 3]}  # the first of both
    html = page(read)
    assert "Charts and the explorer show 4 runs" in html
    assert all(html.count(f'<th scope="row">{run.name}</th>') == 2 for run in read)  # results and settings
    assert "The 7 runs</summary>" in html
    data = json.loads(html.split('id="data">')[1].split("</script>")[0])
    assert len(data["groups"][0]["models"]) == 4
