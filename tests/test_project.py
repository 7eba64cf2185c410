"""The files that hosting services read are well-formed and agree with the package."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from robattr import __version__

yaml = pytest.importorskip("yaml", reason="pip install pyyaml runs these tests")
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text("utf-8"))


def test_the_citation_is_of_this_version_and_licence() -> None:
    found = read("CITATION.cff")
    assert (found["title"], found["version"], found["license"]) == (PROJECT["name"], __version__, PROJECT["license"])
    assert {"cff-version", "message", "authors"} <= found.keys()
    page = (ROOT / "docs" / "cite.md").read_text("utf-8")
    assert f"version = {{{found['version']}}}" in page
    assert f"author  = {{{{{found['authors'][0]['name']}}}}}" in page
    assert f"{{{found['references'][0]['title']}}}" in page


def test_the_workflow_runs_what_contributors_run_on_every_declared_python() -> None:
    job = read(".github/workflows/ci.yml")["jobs"]["run"]
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100
    declared = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if c.startswith("Programming Language :: Python")]
    assert set(declared) <= set(job["strategy"]["matrix"]["python"])


@pytest.mark.parametrize("file", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda f: f.stem)
def test_an_issue_template_has_what_forms_need(file: Path) -> None:
    form = yaml.safe_load(file.read_text("utf-8"))
    assert {"name", "description", "body"} <= form.keys()
    for field in form["body"]:
        assert field["type"] in ("input", "textarea")
        assert field["attributes"]["label"]
