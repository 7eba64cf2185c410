"""The errors robattr raises on purpose. Each message says what was expected, what came, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches


class RobattrError(Exception):
    """Something the user can mend; the command line prints it as one line, without a traceback."""


class InvalidInput(RobattrError, ValueError):
    """A value outside what the formula, an attack or a measure is defined for."""


class UnsupportedModel(RobattrError, TypeError):
    """A model that cannot be differentiated twice as it is."""


class MissingExtra(RobattrError, ImportError):
    """An optional dependency is not installed."""


class DataError(RobattrError):
    """A dataset file is missing, damaged or foreign."""


class CheckpointError(RobattrError):
    """A checkpoint or run directory is damaged, or belongs to something else."""


class Diverged(RobattrError):
    """Training met a non-finite loss or gradient."""


class CompilationFellBack(UserWarning):
    """A function could not be compiled and runs eagerly: the same results, but slower."""


class NoLocks(UserWarning):
    """A file system without locks, as some network ones are: two processes could write to one directory."""


def brief(value: object, most: int = 120) -> str:
    """`repr` without addresses, for an error: a composition may be a page long."""
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def shape_of(value: object) -> str:
    """The shape of a tensor, or the type of anything else, for an error."""
    return str(tuple(value.shape)) if hasattr(value, "shape") else type(value).__name__


MOST = 60  # names in an error


def nearest(name: object, options: Iterable[str]) -> str:
    """A closing phrase for an error about an unknown `name`: the nearest valid ones, else all of them.

    Of names with a slash, such as mnist/natural, those of the folder `name`.
    """
    name, known = str(name), sorted(set(options))
    inside = [option for option in known if option.startswith(f"{name}/")]
    close = get_close_matches(name, known, n=3, cutoff=0.5)
    if close and not inside:
        return f"did you mean {' or '.join(repr(c) for c in close)}?"
    listed = inside or known
    more = f", … ({len(listed)} in all)" if len(listed) > MOST else ""
    return f"valid: {', '.join(listed[:3] if more else listed)}{more}" if known else "there are none"
