"""Optional dependencies, imported when first needed."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from robattr.errors import MissingExtra


def need(module: str, *, extra: str) -> ModuleType:
    """Import `module`, or say which extra of robattr brings it."""
    try:
        return import_module(module)
    except ImportError as cause:
        raise MissingExtra(
            f'this needs the package {module.split(".")[0]!r}, which is not installed: pip install "robattr[{extra}]"'
        ) from cause
