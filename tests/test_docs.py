"""The documents tell the truth: links lead somewhere, names exist, the README's example runs."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


def test_the_readmes_example_runs() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    short = code.replace("range(100)", "range(2)")
    assert short != code
    done = subprocess.run([sys.executable, "-W", "error", "-c", short], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"loss \d+\.\d+, penalty \d+\.\d+\n", done.stdout)


def test_every_name_of_the_api_page_exists() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## `([\w.]+)`\n(.*?)(?=^## |\Z)", text, flags=re.S | re.M)
    names = [(module, name) for module, body in sections for name in re.findall(r"`(\w+)`", body)]
    assert len(names) > 100
    assert not [f"{m}.{n}" for m, n in names if not hasattr(import_module(m), n)]


def test_every_file_of_the_notation_exists_and_defines_its_names() -> None:
    text = (ROOT / "docs" / "notation.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.splitlines() if line.rstrip().endswith((".py` |", "/` |"))]
    assert len(rows) > 12
    for row in rows:
        place = ROOT / "src" / "robattr" / row[-2].strip().strip("`")
        source = "".join(f.read_text(encoding="utf-8") for f in ([place] if place.is_file() else place.glob("*.py")))
        for name in re.findall(r"`\.?(\w+)", row[3]):
            assert re.search(rf"\b{name}\b", source), f"{name} is not in {place.name}"


def test_the_rooms_that_the_pages_name_are_found_after_importing_robattr() -> None:
    """As in `robattr.auditing.Embedded(reader, "embed")`: nobody imports a room by itself first."""
    named = {
        room for page in PAGES for room in re.findall(r"\brobattr\.(\w+)\.\w+\(", page.read_text(encoding="utf-8"))
    }
    assert named >= {"auditing", "objectives"}
    for room in sorted(named):
        code = f"import robattr; robattr.{room}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_importing_robattr_is_light() -> None:
    """torch and NumPy, and nothing of the extras or of the heavier rooms."""
    code = (
        "import sys, robattr; heavy = {'scipy', 'PIL', 'pooch', 'typer', 'rich', 'matplotlib', 'jinja2', "
        "'tensorboard', 'safetensors', 'optuna', 'captum', 'robattr.training', 'robattr.evaluation', 'robattr.cli'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_imports_point_one_way() -> None:
    """formula ← engine ← data, models ← train, evaluate ← report ← recipes ← the rooms on top."""
    order = {
        "formula": 0, "engine": 1, "data": 2, "models": 2, "train": 3, "evaluate": 3, "report": 4, "recipes": 5,
        "reproduce": 6, "auditing": 6, "bench": 6, "cli": 7,
    }  # fmt: skip
    wrong = []
    for room, level in order.items():
        for file in (ROOT / "src" / "robattr" / room).rglob("*.py"):
            for target in re.findall(r"^\s*from robattr\.(\w+)", file.read_text(encoding="utf-8"), flags=re.M):
                if order.get(target, -1) > level or (order.get(target) == level and target != room):
                    wrong.append(f"{file.relative_to(ROOT)} imports {target}")
    assert not wrong
