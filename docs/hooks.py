"""Hooks of the documentation site: reference pages from docstrings, the repository's own pages, mathematics.

MkDocs calls the functions `on_*` by name.
"""

from __future__ import annotations

import ast
import posixpath
import re
from functools import cache
from html import unescape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md"}  # of the repository's root; the others keep their names
NUMBERS = ("benchmarks.md", "results.md", "tried.md", "CHANGELOG.md")
PRIME = re.compile(r"<msup>(<mi>[^<]*</mi>)<mi>&#x02032;</mi></msup>")
PRIME_AND_INDEX = re.compile(r"<msubsup>(<mi>[^<]*</mi>)(<mi>[^<]*</mi>)<mi>&#x02032;</mi></msubsup>")
LINK = re.compile(r"(\]\(|(?:src|href)=\")(?!\w+:|#|/)([^)\s#\"]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put a page of every subpackage in the place of REFERENCE."""
    reference = [f"reference/{subpackage}.md" for subpackage in subpackages()]
    for section in config.nav or []:
        for title, entries in section.items() if isinstance(section, dict) else ():
            if "REFERENCE" in entries:
                section[title] = [e for e in entries if e != "REFERENCE"] + reference
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reference pages, the pages of the repository's root, and the files that pages link to outside docs/."""
    for page in sorted(ROOT.glob("*.md")):
        files.append(File.generated(config, PAGES.get(page.name, page.name), content=page.read_text("utf-8")))
    for subpackage in subpackages():
        files.append(File.generated(config, f"reference/{subpackage}.md", content=reference(subpackage)))
    for file in list(files.documentation_pages()):
        for _, target in LINK.findall(file.content_string):
            found = in_repository(file.src_uri, target)
            if found and found.is_file() and not files.get_file_from_path(uri_of(found)):
                files.append(File.generated(config, uri_of(found), abs_src_path=str(found)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links into the repository lead to the site's copy; search finds guides before tables of numbers."""
    if page.file.src_uri in NUMBERS:
        page.meta["search"] = {"boost": 0.2}

    def moved(match: re.Match[str]) -> str:
        found = in_repository(page.file.src_uri, match[2])
        if found is None or not found.is_file():
            return match[0]
        return match[1] + posixpath.relpath(uri_of(found), posixpath.dirname(page.file.src_uri) or ".")

    return LINK.sub(moved, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Turn LaTeX into MathML, which browsers show without a script."""

    def formula(match: re.Match[str]) -> str:
        display = match[1] == "div"
        latex = (
            unescape(match[2])
            .strip()
            .removeprefix("\\[" if display else "\\(")
            .removesuffix("\\]" if display else "\\)")
        )
        made = convert(latex, display="block" if display else "inline").replace("<mi>;</mi>", "<mo>;</mo>")
        made = PRIME.sub(r"<mrow>\1<mo>&#x02032;</mo></mrow>", made)  # as an exponent it is too small to see
        made = PRIME_AND_INDEX.sub(r"<msub><mrow>\1<mo>&#x02032;</mo></mrow>\2</msub>", made)
        return f'<div class="formula">{made}</div>' if display else made

    return re.sub(r'<(div|span) class="arithmatex">(.*?)</\1>', formula, html, flags=re.S)


def on_post_template(output: str, **_: Any) -> str:
    """The page for wrong addresses needs no search."""
    return output.replace("https://unpkg.com/iframe-worker/shim", "assets/file_worker.js")


def on_post_page(output: str, *, page: Page, **_: Any) -> str:
    """Let search in pages opened from a folder use the site's own script instead of one from the network."""
    here = posixpath.relpath("assets/file_worker.js", posixpath.dirname(page.file.dest_uri) or ".")
    return output.replace("https://unpkg.com/iframe-worker/shim", here)


def in_repository(page: str, target: str) -> Path | None:
    """The file of the repository that a link of `page` means, or None for a page of the site."""
    at = "" if (ROOT / page).is_file() or page == "index.md" else "docs/"
    path = posixpath.normpath(posixpath.join(posixpath.dirname(at + page), target))
    return None if path.startswith("..") else ROOT / path


def uri_of(file: Path) -> str:
    """Where the site has a file of the repository."""
    path = file.relative_to(ROOT).as_posix()
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return PAGES.get(path, path if "/" not in path and path.endswith(".md") else f"repository/{path}")


@cache
def subpackages() -> list[str]:
    """The package, the formula and its objectives, then the other public subpackages and modules by name."""
    package = ROOT / "src" / "robattr"
    found = {file.parent.name for file in package.glob("*/__init__.py")} | {file.stem for file in package.glob("*.py")}
    first = ["formula", "objectives"]
    return ["robattr", *first, *sorted(name for name in found - {*first, "cli"} if not name.startswith("_"))]


@cache
def public(module: str) -> dict[str, str]:
    """The names that a module defines or re-exports (`from a import b as b`), each with the path of its docstring."""
    names: dict[str, str] = {}
    for node in ast.parse(Path(str(find_spec(module).origin)).read_text("utf-8")).body:  # type: ignore[union-attr]
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names[name] = f"{module}.{name}"
            case ast.ImportFrom() if node.module != "robattr":
                names |= exported(module, node)
            case ast.If(body=body):  # names that are imported at their first use
                for found in body:
                    if isinstance(found, ast.ImportFrom) and found.module != "robattr":
                        names |= exported(module, found)
    return {name: path for name, path in names.items() if not name.startswith("_")}


def exported(module: str, node: ast.ImportFrom) -> dict[str, str]:
    """What an import statement re-exports; the path of `audit` from audit.py is `audit.audit`, not the file."""
    names = [alias.name for alias in node.names if alias.asname == alias.name]
    return {name: f"{module}.{name}" + f".{name}" * (node.module == f"{module}.{name}") for name in names}


def reference(subpackage: str) -> str:
    """A page of a subpackage: its docstring, then each public name with its own."""
    module = "robattr" if subpackage == "robattr" else f"robattr.{subpackage}"
    lines = [f"# `{module}`", "", f"::: {module}", "    options: {show_root_heading: false, members: false}", ""]
    if subpackage == "robattr":
        for page in [*subpackages()[2:], "formula"]:  # what one calls first, then the many parts
            paths = public(f"robattr.{page}")
            if names := [name for name in public(module) if home(name) == page]:
                lines += ["", f"## From [`robattr.{page}`]({page}.md)", "", "| name | what it is |", "|---|---|"]
                lines += [f"| [`{name}`][{paths[name]}] | {first_line(f'robattr.{page}', name)} |" for name in names]
    else:
        for path in public(module).values():
            lines += [f"::: {path}", ""]
    return "\n".join(lines)


def home(name: str) -> str:
    """The first subpackage whose page has a name of the package."""
    return next(page for page in subpackages()[1:] if name in public(f"robattr.{page}"))


def first_line(module: str, name: str) -> str:
    """The first line of the docstring of a function, a class or a value, which may be imported from elsewhere."""
    body = ast.parse(Path(str(find_spec(module).origin)).read_text("utf-8")).body  # type: ignore[union-attr]
    body += [inner for node in body if isinstance(node, ast.If) for inner in node.body]  # imported at the first use
    for node, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        match node, after:
            case ast.ImportFrom(module=str(source), names=aliases), _ if name in [a.asname or a.name for a in aliases]:
                return first_line(source, name)
            case (ast.FunctionDef() | ast.ClassDef()) as found, _ if found.name == name:
                return (ast.get_docstring(found) or "").partition("\n")[0].replace("|", "\\|")
            case (
                (ast.Assign(targets=[ast.Name(id=target)]) | ast.AnnAssign(target=ast.Name(id=target))),
                ast.Expr(ast.Constant(str(doc))),
            ) if target == name:
                return doc.partition("\n")[0].replace("|", "\\|")
    return ""
