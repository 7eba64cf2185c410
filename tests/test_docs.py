"""The pages tell the truth: links, names, commands and files exist, and the README's example runs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

import robattr
from robattr.cli import app

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "robattr"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
TEXT = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
RECORDED = {"benchmarks.md", "results.md"}  # pages that show commands of past runs


def code_of(text: str) -> list[str]:
    """The lines of code blocks, and the inline code."""
    blocks = re.findall(r"^```.*?\n(.*?)^```", text, flags=re.S | re.M)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    return [line.strip() for block in blocks for line in block.splitlines()] + re.findall(r"`([^`\n]+)`", rest)


def dotted_names(text: str) -> set[str]:
    """The dotted names below `robattr`, as in `robattr.training.sweep`."""
    return {name for line in code_of(text) for name in re.findall(r"\brobattr(?:\.[A-Za-z_]\w*)+", line)}


def exists(name: str) -> bool:
    """Whether a dotted name is found: as an attribute of robattr, further names as attributes or submodules."""
    _, *parts = name.split(".")
    found: object = robattr
    for i, part in enumerate(parts):
        if not hasattr(found, part) and i > 0:
            try:
                import_module(".".join(["robattr", *parts[: i + 1]]))
            except ModuleNotFoundError:
                return False
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", TEXT[page.name])
    assert not [link for link in links if "://" not in link and not (page.parent / link).exists()]


@pytest.mark.parametrize("page", sorted(TEXT))
def test_every_dotted_name_exists(page: str) -> None:
    assert not [name for name in sorted(dotted_names(TEXT[page])) if not exists(name)]


def test_a_wrong_dotted_name_is_found() -> None:
    names = dotted_names(
        "`robattr.train.sweep` and `robattr.nowhere`\n\n```\nx = robattr.data.from_folder(path)\n```\n"
    )
    assert names == {"robattr.train.sweep", "robattr.nowhere", "robattr.data.from_folder"}
    assert {name for name in names if exists(name)} == {"robattr.data.from_folder"}


@pytest.mark.parametrize("page", sorted(set(TEXT) - RECORDED))
def test_every_command_exists(page: str) -> None:
    commands = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    lines = code_of(TEXT[page])
    assert {m[1] for line in lines if (m := re.match(r"robattr ([a-z]+)", line))} <= commands
    assert {m[1] for line in lines if (m := re.match(r"make ([a-z]+)", line))} <= targets


def shell_lines(text: str) -> list[str]:
    """The commands of shell blocks (fenced or indented, continued lines joined) and of the text."""
    fenced = re.findall(r"^```(?:sh|bash)?\n(.*?)^```", text, flags=re.S | re.M)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    indented = re.findall(r"(?:^    .*\n)+", rest, flags=re.M)
    lines = "\n".join([*fenced, *indented]).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines] + re.findall(r"`([^`\n]+)`", rest)


def options_of(line: str) -> tuple[str, set[str], set[str]] | None:
    """Of a line that calls robattr: the command, the options that it is given, and those that the command has."""
    if not (found := re.search(r"(?:^|-m )robattr ([a-z].*)", line)):
        return None
    words = re.sub(r"\s#.*", "", found[1]).split()
    command: Any = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
    return command.name, {word.partition("=")[0] for word in words if word.startswith("-")}, known


@pytest.mark.parametrize("page", sorted(set(TEXT) - RECORDED - {"CHANGELOG.md"}))
def test_every_option_exists(page: str) -> None:
    calls = [call for line in shell_lines(TEXT[page]) if (call := options_of(line))]
    assert not [(name, given - known) for name, given, known in calls if given - known - {"--help"}]


def test_a_wrong_option_is_found() -> None:
    (line,) = shell_lines("```sh\nrobattr train mnist/natural \\\n  --out x --nowhere=3  # why\n```\n")
    name, given, known = options_of(line) or ("", set(), set())
    assert (name, given - known) == ("train", {"--nowhere"})


def test_dir_lists_every_public_name() -> None:
    subpackages = {file.parent.name for file in PACKAGE.glob("*/__init__.py")}
    assert subpackages - {"cli"} <= set(dir(robattr))
    assert {"IG", "Robust", "train", "evaluate", "audit", "harden", "doctor", "load_model"} <= set(dir(robattr))
    assert all(hasattr(robattr, name) for name in dir(robattr))


def test_every_file_of_the_notation_exists_and_defines_its_names() -> None:
    rows = [line.split("|") for line in TEXT["notation.md"].splitlines() if line.rstrip().endswith((".py` |", "/` |"))]
    assert len(rows) > 30
    for row in rows:
        places = [PACKAGE / file for file in re.findall(r"`([^`]+)`", row[-2])]
        assert all(place.exists() for place in places), row
        files = [file for place in places for file in ([place] if place.is_file() else place.glob("*.py"))]
        source = "".join(file.read_text(encoding="utf-8") for file in files)
        for name in re.findall(r"`\.?(\w+)", row[-3]):
            assert re.search(rf"\b{name}\b", source), f"{name} is not in {row[-2].strip()}"


def test_every_file_that_a_page_names_exists() -> None:
    named = {
        (page, file) for page, text in TEXT.items() for file in re.findall(r"`((?:src|tests|docs)/[\w/.]+)`", text)
    }
    assert not [(page, file) for page, file in sorted(named) if not (ROOT / file).exists()]


def test_the_readmes_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT["README.md"], flags=re.S)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    short = code.replace("range(100)", "range(2)")
    assert short != code
    exec(compile(short, "README.md", "exec"), {"__name__": "__main__"})
    assert re.fullmatch(r"loss \d+\.\d+, penalty \d+\.\d+\n", capsys.readouterr().out)


def test_contributings_objective_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT["CONTRIBUTING.md"], flags=re.S)
    names = {**vars(robattr.objectives), "l2": robattr.l2}
    exec(compile(code, "CONTRIBUTING.md", "exec"), names)
    rho = names["ig_squared"](0.1, robattr.LinfBall(0.1), robattr.PGD(1, 0.1), m=2, m_attack=1)
    out = rho(robattr.models.small_cnn(), torch.rand(2, 1, 28, 28), torch.arange(2))
    assert (out.penalty > 0).all()


def test_contributings_names_occur_in_the_source() -> None:
    recipes = TEXT["CONTRIBUTING.md"].partition("## Recipes")[2].partition("## Habits")[0]
    names = set(re.findall(r"`([A-Za-z]\w+)`", re.sub(r"```.*?```", "", recipes, flags=re.S)))
    source = "\n".join(file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py"))
    assert names >= {"DatasetInfo", "measures", "iterates", "AGREEMENT", "METHODS"}
    assert not [name for name in sorted(names) if not re.search(rf"\b{name}\b", source)]


def test_importing_robattr_is_light() -> None:
    """Torch is loaded at the first name, optional packages and the subpackages above the formula when they are used."""
    code = (
        "import sys, robattr; assert 'torch' not in sys.modules; robattr.IG; "
        "heavy = {'scipy', 'PIL', 'requests', 'typer', 'rich', 'matplotlib', 'jinja2', "
        "'tensorboard', 'safetensors', 'optuna', 'captum', 'robattr.training', 'robattr.evaluation', 'robattr.cli'};"
        "print(sorted(heavy & set(sys.modules)), robattr.auditing.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "robattr.auditing"]


def test_type_checkers_see_the_names_that_are_imported_at_their_first_use() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (seen,) = (node.body for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in seen if isinstance(node, ast.ImportFrom)]
    assert {a.name for n in imports for a in n.names if n.module == "robattr"} == set(robattr._SUBPACKAGES)
    assert {a.name: n.module for n in imports for a in n.names if n.module != "robattr"} == robattr._LAZY
