"""Networks by name: the network of a dataset, and a user's own by the function that builds it."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

from torch import nn

from robattr.errors import InvalidInput, RobattrError, UnsupportedModel, nearest
from robattr.models.cnn import paper_cnn, small_cnn
from robattr.models.resnet import flower_resnet, gtsrb_resnet

NAME = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"

DEFAULTS: dict[str, Callable[[], nn.Module]] = {
    "mnist": paper_cnn,
    "fashion-mnist": paper_cnn,
    "gtsrb": gtsrb_resnet,
    "flower": flower_resnet,
    "fashion-mini": small_cnn,
}


def for_dataset(name: str) -> nn.Module:
    """The paper's network for `name` (a small CNN for `fashion-mini`), initialised from torch's global generator.

    Call `torch.manual_seed` first for a reproducible start.
    """
    if name not in DEFAULTS:
        raise InvalidInput(f"expected a dataset with a network of its own, got {name!r}: {nearest(name, DEFAULTS)}")
    return DEFAULTS[name]()


def from_factory(ref: str) -> nn.Module:
    """The module that "package.module:factory" returns; `factory` is a function or class without required arguments.

    The current directory is importable, as with `python -m`. This runs the user's code: never pass a name that
    came with a file. If the name is a module object, not a function, it is returned.
    """
    found = import_named(ref, example="my_nets:make_net")
    try:
        model = found if isinstance(found, nn.Module) else found()
    except RobattrError:
        raise
    except Exception as cause:
        raise UnsupportedModel(f"{ref!r} failed: {type(cause).__name__}: {cause}") from cause
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(f"expected {ref!r} to return a torch.nn.Module, got {type(model).__name__}")
    return model


def is_name(ref: str) -> bool:
    """Whether `ref` has the form "package.module:name"."""
    return re.fullmatch(f"{NAME}:{NAME}", ref) is not None


def import_named(ref: str, *, example: str) -> Any:
    """What "package.module:name" names; the current directory is importable. This runs the user's code."""
    if not is_name(ref):
        raise InvalidInput(f"expected 'package.module:factory', got {ref!r}; for example {example!r}")
    where, _, what = ref.partition(":")
    if where.endswith(".py") and Path(where).is_file():
        raise InvalidInput(f"expected the name of a module, got a file: write {where[:-3]}:{what}")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(where)
    except Exception as cause:
        said = f"importing {where!r} failed: {type(cause).__name__}: {cause}"
        if isinstance(cause, ModuleNotFoundError) and cause.name == where.partition(".")[0]:
            said += ": run the command in the folder of that file, or add the folder to PYTHONPATH"
        raise InvalidInput(said) from cause
    finally:
        sys.path.remove(here)
    try:
        return reduce(getattr, what.split("."), module)
    except AttributeError as cause:
        public = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise InvalidInput(f"{where!r} has no {what!r}: {nearest(what, public)}") from cause
