"""A Griffe extension for docstrings: argument lists (two aligned columns) become lists, examples become code."""

from __future__ import annotations

import re
from typing import Any

import griffe


class ArgumentLists(griffe.Extension):
    """Rewrites the docstring of every object before it is rendered."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = "\n\n".join(as_markdown(block) for block in obj.docstring.value.split("\n\n"))


def as_markdown(block: str) -> str:
    """A paragraph of a docstring as the page has it; `>>> ` would be a quotation there."""
    return f"```pycon\n{block}\n```" if block.startswith(">>> ") else as_list(block)


def as_list(block: str) -> str:
    """A block of lines `name   meaning`, whose continuation lines are indented, as a Markdown list."""
    lines = block.splitlines()
    entry = re.compile(r"(\w+(?:, \w+)*) {2,}(\S.*)")
    if not all(entry.fullmatch(line) or line.startswith("    ") for line in lines) or not entry.fullmatch(lines[0]):
        return block
    return "\n".join(f"- `{m[1]}`: {m[2]}" if (m := entry.fullmatch(line)) else line.strip() for line in lines)
