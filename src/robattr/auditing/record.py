"""The settings of an audit, and its run directory: it can be interrupted, continued and rendered like any run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, Literal, TypeAlias

from torch import Tensor

from robattr._form import check_fields
from robattr._progress import Watch
from robattr.attacks.maps import AttributionMap, by_name, integrated_gradients, saliency
from robattr.auditing.arithmetic import choose, choose_directions
from robattr.auditing.as_dataset import digest, draw
from robattr.auditing.interop import captum_map
from robattr.auditing.wrapped_model import WrappedModel
from robattr.certificates import Examples, Smoothing, certify
from robattr.data import Dataset
from robattr.engine import precision
from robattr.engine.files import locked, write_json
from robattr.engine.processes import World
from robattr.errors import CheckpointError, InvalidInput, brief, nearest
from robattr.evaluation import protocol as protocols
from robattr.evaluation.checks import ModelProbe, require
from robattr.evaluation.output_dir import OutputDir
from robattr.evaluation.paper_results import PaperResults
from robattr.evaluation.protocol import Protocol
from robattr.evaluation.records import discard_all
from robattr.evaluation.resume_checks import digest_of_weights
from robattr.evaluation.run import evaluate
from robattr.evaluation.suite import attribution_attacks
from robattr.formula.checks import check_seed
from robattr.formula.quadrature import MOST_NODES
from robattr.reporting.run_results import RunResults, read_run
from robattr.training.run_directory import RunDirectory, environment, read_config

# An audit continues where these are equal.
DECISIVE = ("dataset", "bounds", "preprocessing", "examples", "training", "attack", "weights", "precision")

SIGMA, RADII = 0.25, (0.05, 0.1, 0.25)  # of certificates, over the width of the range

PRECISIONS = ("auto", "fp32", "tf32", "bf16")

ProtocolName: TypeAlias = Literal["both", "paper", "strict"]


@dataclass(frozen=True)
class Settings:
    """Settings of an audit. None is the dataset's own eps, steps or points, else ε = 8/255 of the range, 50, 100."""

    eps: float | None = None
    maps: str | AttributionMap | Sequence[str | AttributionMap] = "ig"
    protocol: ProtocolName = "both"
    examples: int | None = 100
    steps: int | None = None
    points: int | None = None
    seed: int = 0
    compiled: bool | None = None  # compile the attack; None: on a GPU, where that saves time
    certify: Smoothing | bool = False  # also certify smoothed explanations
    precision: str = "auto"  # of matrix products; auto: reduced where scores stay the same (`arithmetic.choose`)
    directions: str | None = None  # precision of what only leads the attack, if another one

    def __post_init__(self) -> None:
        if self.protocol not in ("both", "paper", "strict"):
            raise InvalidInput(
                f"unknown protocol {self.protocol!r}: {nearest(self.protocol, ('both', 'paper', 'strict'))}"
            )
        if self.precision not in PRECISIONS:
            raise InvalidInput(f"unknown precision {self.precision!r}: {nearest(self.precision, PRECISIONS)}")
        if self.eps is not None and not (isinstance(self.eps, Real) and self.eps > 0):
            raise InvalidInput(f"expected a number above 0 as eps, such as 8 / 255, got {self.eps!r}")
        check_fields(self)
        check_seed(self.seed)
        for name, most in (("examples", 2**63), ("steps", protocols.MOST_STEPS), ("points", MOST_NODES)):
            if (value := getattr(self, name)) is not None and not 1 <= value <= most:
                raise InvalidInput(f"expected {name} of 1 to {most:,}, got {value}")

    def base(self, data: Dataset, *, values: int = 10) -> Protocol:
        """The paper's protocol for these data, as in an evaluation; for other data, with maps of `values` values."""
        if not protocols.is_paper_dataset(data):
            made = protocols.scaled(data.name, pixels=values, bounds=data.bounds, eps=self.eps)
        else:
            made = protocols.paper(data.name)
            made = made if self.eps is None else replace(made.with_eps(self.eps), name=made.name)
        steps, points = self.steps or made.steps, self.points or made.N
        return replace(made, steps=steps, N=points, seed=self.seed)

    def chosen_maps(self, data: Dataset) -> list[AttributionMap]:
        """The maps asked for."""
        return parse_maps(self.maps, points=self.base(data).N, bounds=data.bounds)

    @property
    def asked(self) -> list[str]:
        """The names of the protocols asked for."""
        return ["paper", "strict"] if self.protocol == "both" else [self.protocol]

    def protocols(self, data: Dataset, *, values: int) -> list[Protocol]:
        """The protocols asked for."""
        base = self.base(data, values=values)
        return [protocols.named(name, base) for name in self.asked]


def parse_maps(
    wanted: str | AttributionMap | Sequence[str | AttributionMap],
    *,
    points: int = 100,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> list[AttributionMap]:
    """Maps from `"ig,captum:Saliency"`, a map, or a list of names and maps; `points` are those of IG's path."""
    if not isinstance(wanted, str | Iterable) and not callable(wanted):
        raise InvalidInput(f"expected maps by name, such as 'ig,sg', or a list of maps, got {brief(wanted)}")
    parts = wanted.split(",") if isinstance(wanted, str) else [wanted] if callable(wanted) else list(wanted)
    found = [p if isinstance(p, AttributionMap) else _named(p, points=points, bounds=bounds) for p in parts]
    for map in found:  # part of a file name
        if not re.fullmatch(r"[\w-]+", map.name):
            raise InvalidInput(f"expected letters, digits, - and _ in the name of a map, got {map.name!r}: rename it")
    if len({map.name for map in found}) != len(found) or not found:
        raise InvalidInput(f"expected at least one map, each once, got {wanted!r}")
    return found


def _named(name: str, *, points: int, bounds: tuple[float, float]) -> AttributionMap:
    if not isinstance(name, str):
        raise InvalidInput(
            f"expected a map or the name of one, got {type(name).__name__}: make a map of a function with "
            "robattr.attacks.from_callable"
        )
    origin, colon, method = name.strip().partition(":")
    if not colon:
        return by_name(origin, N=points, bounds=bounds)
    if origin != "captum":
        raise InvalidInput(f"unknown attribution map {name!r}: expected ig, sg, gi, smoothgrad or captum:Method")
    guide = integrated_gradients(points) if method == "IntegratedGradients" else None
    return captum_map(method, guide=guide)


def record(
    model: WrappedModel,
    data: Dataset,
    settings: Settings,
    folder: Path,
    *,
    config: Mapping[str, Any],
    world: World,
    command: str,
    watch: Watch,
    fresh: bool = False,
) -> RunResults:
    """Audit `model` in the run directory `folder`; the records of an interrupted audit are kept."""
    x, y, ids = draw(data, settings.examples, seed=settings.seed)
    if not len(x):
        raise InvalidInput("expected examples to audit, got an empty dataset")
    here = x.to(world.device), y.to(world.device)
    check_examples(model, *here, data.bounds)  # before anything is written
    settings, told = with_precision(settings, model, data, *here)
    base = settings.base(data)
    full = {
        **config,
        "notes": [*config["notes"], *told],
        "precision": settings.precision,
        "dataset": data.name,
        "bounds": list(data.bounds),
        "preprocessing": {"mean": model.mean.tolist(), "std": model.std.tolist()} if model.preprocessed else None,
        "maps": [map.name for map in settings.chosen_maps(data)],
        "protocols": settings.asked,
        "examples": digest(x, y),
        "seed": settings.seed,
        "attack": {"eps": base.eps, "steps": base.steps, "points": base.N, "seed": base.seed},
        "weights": digest_of_weights(model),
    }
    with _claimed(RunDirectory(folder), full, world, command=command, fresh=fresh):
        return measure(
            model, data, (x, y, ids), settings, folder, world=world, command=command, watch=watch, fresh=fresh
        )


def measure(
    model: WrappedModel,
    data: Dataset,
    examples: tuple[Tensor, Tensor, list[int]],
    settings: Settings,
    folder: Path,
    *,
    world: World,
    command: str,
    watch: Watch,
    fresh: bool = False,
) -> RunResults:
    """Evaluate every protocol and map of `settings` into the run directory `folder`."""
    x, y, ids = examples
    for map in settings.chosen_maps(data):
        values = _values(map, model, x[:1].to(world.device), y[:1].to(world.device))
        shared = PaperResults() if len(settings.asked) > 1 else None
        for protocol in settings.protocols(data, values=values):
            evaluate(
                model, x, y,
                protocol=protocol, map=map, ids=ids, out=OutputDir(folder / "records", world.rank, world.size),
                precision=settings.precision, directions=settings.directions,
                compiled=settings.compiled if map.guide is None else False,  # of another library: runs as it is
                metadata={"run": folder.name, "classes": list(data.classes), "command": command},
                watch=watch, shared=shared,
            )  # fmt: skip
        if settings.certify:
            width = data.bounds[1] - data.bounds[0]
            default = Smoothing(sigma=SIGMA * width, seed=settings.seed)
            smoothing = default if isinstance(settings.certify, bool) else settings.certify
            certify(
                Examples(model, map, x, y.long(), ids, smoothing, data.bounds),
                [radius * width for radius in RADII],
                out=OutputDir(folder / "certificates", world.rank, world.size, fresh=fresh),
                metadata={"run": folder.name, "dataset": data.name, "command": command},
                progress=partial(watch, f"certify {map.name}", unit="noisy copies"),
            )
    return read_run(folder)


def check_examples(model: WrappedModel, x: Tensor, y: Tensor, bounds: tuple[float, float]) -> None:
    """Run the list of checks as `evaluate` will, in fp32."""
    with precision("fp32", x.device.type):
        require(ModelProbe(model, x, y, bounds))


def with_precision(
    settings: Settings, model: WrappedModel, data: Dataset, x: Tensor, y: Tensor
) -> tuple[Settings, list[str]]:
    """The settings with the precision that fits the model, and what is to be said about it."""
    if settings.precision != "auto":
        return settings, []
    maps = settings.chosen_maps(data)
    protocols = [settings.base(data, values=_values(map, model, x, y)) for map in maps]
    attacks = [
        attribution_attacks(p, model, map, images=x.dim() == 4)[0] for p, map in zip(protocols, maps, strict=True)
    ]
    name, told = choose(model, maps, x, y, protocol=protocols[0])
    directions, also = choose_directions(attacks, x, y)
    own = None if directions == name else directions
    return replace(settings, precision=name, directions=own), [each for each in (told, also) if each]


def _values(map: AttributionMap, model: WrappedModel, x: Tensor, y: Tensor) -> int:
    """How many values a map has."""
    return int(saliency(map, model, x[:1], y[:1]).numel())


@contextmanager
def _claimed(here: RunDirectory, config: dict[str, Any], world: World, *, command: str, fresh: bool) -> Iterator[None]:
    """Hold the folder; write config and environment, or check that an earlier audit in it was of the same."""
    if not world.leads:
        world.wait()
        yield
        return
    elsewhere = f"choose another {'page' if config.get('method') == 'audit' else 'folder'} with -o"
    visible = [*here.path.glob("[!.]*")] if here.path.is_dir() else [here.path] * here.path.exists()
    if visible and not here.config.exists():  # a start that was killed leaves a lock and temporary files alone
        raise CheckpointError(f"{here.path} exists and is not an audit: {elsewhere}")
    here.path.mkdir(parents=True, exist_ok=True)
    with locked(here.path) as lock:
        begun = any((here.path / "records").glob("*"))  # without records nothing is lost
        was = read_config(here) if begun and here.config.exists() else None
        odd = [key for key in DECISIVE if was and was.get(key) != config.get(key)]
        if odd and not fresh:
            raise CheckpointError(
                f"{here.path} has an audit of other data or settings ({', '.join(odd)}): {elsewhere}, or discard it "
                "with --fresh"
            )
        if fresh:
            for kept in ("records", "certificates"):
                discard_all(here.path / kept)
        write_json(here.config, config)
        write_json(here.environment, {**environment(world), "command": command})
        world.wait()
        yield
        lock.check()
