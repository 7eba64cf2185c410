"""Every block of docs/integrations.md runs as it is printed, each in a folder and a namespace of its own."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text("utf-8")
SECTIONS = re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, flags=re.S | re.M)
BLOCKS = [
    pytest.param(code, id=f"{title} {i}")
    for title, text in SECTIONS
    for i, code in enumerate(re.findall(r"```python\n(.*?)```", text, flags=re.S))
]


@pytest.mark.filterwarnings("ignore")  # of the libraries, about the machine and about torch
@pytest.mark.parametrize("code", BLOCKS)
def test_a_block_runs(code: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    packages = {name.split(".")[0] for name in re.findall(r"^(?:from|import) ([\w.]+)", code, flags=re.M)}
    if missing := [name for name in sorted(packages) if find_spec(name) is None]:
        pytest.skip(f"pip install {' '.join(missing)} runs this block")
    if "accelerate" in packages or "transformers" in packages:
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)  # one per process, of whichever test came first
    exec(compile(code, "docs/integrations.md", "exec"), {"__name__": "__main__"})
