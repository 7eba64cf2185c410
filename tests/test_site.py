"""The documentation site: builds without a warning, has every public name, and asks nothing of the network."""

from __future__ import annotations

import doctest
import re
import sys
import zlib
from importlib import import_module
from pathlib import Path
from shutil import which

import pytest

import robattr

mkdocs_build = pytest.importorskip("mkdocs.commands.build")
ROOT = Path(__file__).parents[1]
CHROMIUM = which("chromium") or which("chromium-browser")
MODULES = [
    ".".join(file.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    for file in sorted((ROOT / "src" / "robattr").rglob("*.py"))
    if ">>> " in file.read_text(encoding="utf-8")
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from mkdocs.config import load_config

    out = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        patch.setattr(sys, "path", [*sys.path])  # hooks may extend it
        mkdocs_build.build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(out)))
    return out


def inventory(site: Path) -> dict[str, str]:
    """The names that have an entry in the reference, each with its kind (`py:function`)."""
    _, body = (site / "objects.inv").read_bytes().split(b"zlib.\n", 1)
    return dict(line.split(" ")[:2] for line in zlib.decompress(body).decode().splitlines())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_every_public_name_is_in_the_reference(site: Path) -> None:
    names = {f"robattr.{name}" for name in dir(robattr) if not name.startswith("_")} - {"robattr.cli"}
    entries = inventory(site)
    assert not [name for name in sorted(names) if name not in entries and not has_page(name, entries)]
    assert {"robattr.objectives.ig_norm", "robattr.auditing.per_token", "robattr.metrics.kendall.kendall"} <= {*entries}


def has_page(name: str, entries: dict[str, str]) -> bool:
    """Whether a name of the package has an entry under the subpackage that it comes from, or is such a subpackage."""
    short = name.removeprefix("robattr.")
    homes = {f"robattr.{entry.split('.')[1]}" for entry in entries if entry.count(".") > 1}
    return name in homes or any({f"{home}.{short}", f"{home}.{short}.{short}"} & set(entries) for home in homes)


def test_a_function_is_shown_rather_than_the_file_of_the_same_name(site: Path) -> None:
    modules = {name for name, kind in inventory(site).items() if kind == "py:module" and name.count(".") > 1}
    assert modules == {"robattr.recipes.tuned_networks"}  # which is public as a module


def test_examples_in_docstrings_are_code_and_the_first_page_says_what_each_name_is(site: Path) -> None:
    pages = {page.stem: page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html")}
    assert not [name for name, text in pages.items() if "<blockquote" in text]
    assert "Attack the explanations of <code>model</code>" in pages["robattr"]
    assert not re.findall(r"<td>\s*</td>", pages["robattr"])


def test_pages_ask_nothing_of_the_network(site: Path) -> None:
    loads = re.compile(
        r'<(?:script|img|iframe)[^>]*\ssrc="https?:|<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*href="?https?:'
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    assert not [page.name for page in pages if loads.search(page.read_text(encoding="utf-8"))]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium runs this test")
def test_search_works_in_a_page_opened_from_a_folder(site: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright runs this test")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "reference" / "formula.html").as_uri())
        page.click(".md-search__input")
        page.keyboard.type("insertion")
        page.click(".md-search-result__item a")
        page.wait_for_url("**/evaluation.html*")
        browser.close()
    assert not [url for url in asked if url.startswith("http")]


def test_formulas_are_mathml(site: Path) -> None:
    """Also in tables and folded proofs; a prime beside an index is as large as one without."""
    page = (site / "certificates.html").read_text(encoding="utf-8")
    assert page.count("<math") > 300
    assert "arithmatex" not in page
    text = re.sub(r"<[^>]+>", "", re.sub(r"<(math|pre|code|script)\b.*?</\1>", "", page, flags=re.S))
    assert not re.findall(r"\$|\\[a-z]+", text)
    assert "<msub><mrow><mi>x</mi><mo>&#x02032;</mo></mrow><mi>i</mi></msub>" in page


def test_the_asterisk_of_a_worst_point_is_not_emphasis(site: Path) -> None:
    page = (site / "reference" / "objectives.html").read_text(encoding="utf-8")
    assert "ℓ(x*) is written ℓ(x) + (ℓ(x*) − ℓ(x))" in page
    emphasised = [text for p in site.rglob("*.html") for text in re.findall(r"<em>(.*?)</em>", p.read_text("utf-8"))]
    assert "maps" in emphasised
    assert not [text for text in emphasised if re.match(r"[)}\]]", text)]


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name: str) -> None:
    failed, tried = doctest.testmod(import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried
    assert not failed


def test_docstrings_have_examples() -> None:
    assert len(MODULES) >= 6
