"""The notebooks in examples/ run from the first cell to the last, with a few steps."""

from __future__ import annotations

import json
import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "examples").glob("*.ipynb"))
FEWER = {"STEPS": 8, "EXAMPLES": 6, "ITERATIONS": 2}
MORE = {  # an untrained model has no examples to attack, and a transformer learns slowly
    "quickstart": {**FEWER, "STEPS": 25},
    "audit_any_model": {**FEWER, "STEPS": 100},
}
SAYS = {
    "audit_any_model": "answers that are certified: [",
    "own_objective": "validation accuracy 0.",
    "quickstart": "random noise alone 0.",
    "tables_and_tokens": "the most important word is unchanged in",
}


def cells(notebook: Path) -> list[dict]:
    return [c for c in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]


@pytest.mark.filterwarnings("ignore")  # of the packages that a notebook shows
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda n: n.stem)
def test_a_notebook_runs(notebook: Path, tmp_path, monkeypatch, capsys, short_search, undrawn) -> None:
    if notebook.stem == "audit_any_model":
        pytest.importorskip("transformers", reason="pip install transformers runs this notebook")
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    names: dict[str, object] = {"__name__": notebook.stem}
    for number, cell in enumerate(cells(notebook)):
        source = "".join(cell["source"])
        if "parameters" in cell["metadata"].get("tags", []):
            fewer = MORE.get(notebook.stem, FEWER)
            source = re.sub(r"(?m)^(\w+) = \d+", lambda found: f"{found[1]} = {fewer[found[1]]}", source)  # noqa: B023
        exec(compile(source, f"{notebook.name}, cell {number}", "exec"), names)
    plt.close("all")
    assert SAYS[notebook.stem] in capsys.readouterr().out


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda n: n.stem)
def test_its_outputs_are_those_of_one_run_without_errors(notebook: Path) -> None:
    assert [c["execution_count"] for c in cells(notebook)] == [*range(1, len(cells(notebook)) + 1)]
    outputs = [output for c in cells(notebook) for output in c["outputs"]]
    assert all(output["output_type"] != "error" for output in outputs)
    assert "site-packages" not in str(outputs)  # a warning that names the machine it came from
    assert SAYS[notebook.stem] in "".join("".join(output.get("text", "")) for output in outputs)


def test_every_notebook_is_tested() -> None:
    assert [notebook.stem for notebook in NOTEBOOKS] == sorted(SAYS)
