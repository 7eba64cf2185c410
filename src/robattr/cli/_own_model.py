"""The user's own model and data: the options that name them, and what is opened by those."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robattr._progress import say
from robattr._text import numbers
from robattr.cli._options import MAPS, choices_with_commas, known_datasets, known_runs
from robattr.errors import InvalidInput

if TYPE_CHECKING:
    from torch import nn

    from robattr.data import Dataset

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Your model as package.module:factory, a function without arguments, which is imported and called. Or a "
        "run directory, a .safetensors file or a model of the zoo.",
        autocompletion=known_runs,
    ),
]
Weights = Annotated[Path | None, typer.Option(help="Weights: .safetensors, or a .pt file of tensors only.")]
DATA = "A folder with one folder of images per class, or a dataset's name."
Data = Annotated[str, typer.Option(help=DATA, autocompletion=known_datasets)]
Bounds = Annotated[str, typer.Option(help="Range of the inputs: 0,1 or 0,255.")]
Mean = Annotated[
    str | None, typer.Option(help="The model's normalisation, per channel: 0.485,0.456,0.406 is subtracted …")
]
Std = Annotated[str | None, typer.Option(help="… and the difference divided by 0.229,0.224,0.225.")]
Eps = Annotated[
    str | None,
    typer.Option(
        help="Radius of the attack, in units of the bounds: 8/255 (default: the dataset's, else 8/255 of the range)."
    ),
]
Size = Annotated[
    int | None, typer.Option(min=1, help="Side to which images are resized (default: a run's, else their own).")
]
Channels = Annotated[int | None, typer.Option(min=1, help="1 or 3 (default: what the first convolution takes).")]
Classes = Annotated[Path | None, typer.Option(help="A text file with the name of each output, one per line, in order.")]
Maps = Annotated[
    str,
    typer.Option(
        help="Explanations, with commas: ig, sg, gi, smoothgrad, captum:Saliency, …",
        autocompletion=choices_with_commas(*MAPS, "captum:Saliency"),
    ),
]
Seed = Annotated[int, typer.Option(help="Seed for the choice of examples and the attacks.")]
Points = Annotated[
    int | None,
    typer.Option(min=1, help="Points of the path of integrated gradients (default: the dataset's, else 100)."),
]


def open_model(ref: str, weights: Path | None, *, trust: bool) -> nn.Module:
    """The user's model; before a factory is imported, which runs the user's code, a line says so."""
    from robattr import models
    from robattr.runs import load_model

    if ":" in ref:
        say(f"importing {ref}: this runs its code")
        made = models.from_factory(ref)
    elif "/" in ref or Path(ref).exists():
        made = load_model(ref, trust=trust)
    else:
        raise InvalidInput(
            "expected package.module:factory, a run directory, a .safetensors file or a model of the zoo, got "
            f"{ref!r}: for a function of {ref}.py, write {ref}:factory; `robattr --list` shows the zoo"
        )
    return made if weights is None else models.load_weights(made, weights)


def open_data(data: str, data_dir: Path | None) -> str | Dataset:
    """The user's folder, or the dataset of that name in `data_dir`."""
    from robattr import data as datasets

    return datasets.load(data, data_dir) if data in datasets.names() and data_dir is not None else data


def preprocessing(mean: str | None, std: str | None, weights: Path | None) -> dict[str, Any] | None:
    """The given mean and std, checked against those saved with the weights."""
    from robattr.auditing.wrapped_model import check_preprocessing

    given = {key: numbers(text, f"--{key}") for key, text in (("mean", mean), ("std", std)) if text is not None}
    check_preprocessing(given, weights)
    return given or None


def class_names(path: Path | None) -> list[str] | None:
    if path is None:
        return None
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()  # some editors write a byte-order mark
    except (OSError, UnicodeDecodeError) as cause:
        why = getattr(cause, "strerror", None) or "it is not UTF-8"
        raise InvalidInput(f"expected a text file of class names, got {path} ({why}): correct --classes") from cause
    return [line.strip() for line in lines if line.strip()]
