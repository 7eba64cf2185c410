"""Networks on disk: safetensors, whose metadata says how the network is built. Nothing here unpickles code."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from math import isnan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robattr._extras import need
from robattr.errors import CheckpointError, InvalidInput, nearest
from robattr.models import zoo
from robattr.models.architecture import Spec, build, spec_of

SPEC = "robattr.spec"  # the metadata key under which a file holds the JSON of its network's spec
PREFIXES = ("module.", "_orig_mod.")  # what DataParallel and torch.compile put before every name


def save_model(model: nn.Module, path: str | Path, metadata: Mapping[str, str] | None = None) -> Path:
    """Write `model`'s weights, its spec and `metadata` to a safetensors file; the write is atomic.

    A network without a spec (not built by a function marked `@architecture`) is written all the same, but only
    `load_weights` can read it back, into a module of the user's making.
    """
    safetensors = need("safetensors.torch", extra="zoo")
    target = Path(path)
    notes = {"format": "pt", **(metadata or {})}
    if (spec := spec_of(model)) is not None:
        notes[SPEC] = spec.to_json()
    wrong = [key for key, note in notes.items() if not isinstance(note, str)]
    if wrong:
        raise InvalidInput(f"expected metadata that maps str to str, got other values for {wrong}")
    # A copy of each tensor: tied weights share memory, which the format refuses.
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in model.state_dict().items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(_with_sorted_header(safetensors.save(tensors, metadata=notes)))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def read_model(path: Path) -> nn.Module:
    """The network in a safetensors file that `save_model` wrote: float32, on the CPU, in train mode.

    torch's random generator keeps its state. A network of the tuned recipes needs `import robattr.recipes` first.
    """
    notes = read_metadata(path)
    if SPEC not in notes:
        raise CheckpointError(
            f"{path} does not say which network its weights belong to: "
            "build the module and use load_weights(module, path)"
        )
    try:
        spec = Spec.from_json(notes[SPEC])
        with torch.device("meta"):  # shapes alone, first: no memory for a forged spec
            shapes = build(spec)
    except InvalidInput as cause:
        raise CheckpointError(f"{path} cannot be rebuilt: {cause}") from cause
    tensors = _read(path)
    _check(shapes, tensors, path)
    with torch.random.fork_rng(devices=[]):
        model = build(spec).float()
    model.load_state_dict(tensors)
    return model


def to_half(ref: str | Path) -> float:
    """Round the weights of a saved network to half precision, in place: half the size; `read_model` gives float32.

    Returns the largest rounding, relative to the largest weight of its tensor. Evaluate the network afterwards: then
    its scores are those of the rounded weights.
    """
    path = locate(ref)
    notes = {key: note for key, note in read_metadata(path).items() if key not in (SPEC, "format")}
    model = read_model(path)
    exact = {name: value.clone() for name, value in model.state_dict().items() if value.is_floating_point()}
    model.half()
    roundings = [0.0]
    for name, value in model.state_dict().items():
        if name in exact and exact[name].numel():
            largest = exact[name].abs().max().clamp_min(torch.finfo(torch.float32).tiny)
            roundings.append(float((value.float() - exact[name]).abs().max() / largest))
    worst = max(roundings, key=lambda rounding: (isnan(rounding), rounding))
    if not worst < 2**-10:  # half precision keeps eleven bits
        raise CheckpointError(f"{path} does not fit half precision (relative rounding {worst:.1e}): keep its float32")
    save_model(model, path, notes)
    return worst


def load_weights(module: nn.Module, path: str | Path) -> nn.Module:
    """Copy the weights in `path` into `module` (every name and shape must match) and return it.

    `path` is a safetensors file or a torch file (.pt, .pth, .bin, .ckpt) that holds tensors only: it is read with
    `weights_only=True`, so a file that carries code is refused, not run. A state dict nested under "state_dict" or
    "model" is found, and the prefixes that DataParallel, torch.compile and `robattr.harden` add are dropped, where the
    names then fit better. Values are cast to the module's dtype and device.
    """
    source = Path(path)
    if not source.is_file():
        raise CheckpointError(f"no such weight file: {source}")
    tensors = _read(source) if source.suffix == ".safetensors" else _read_torch(source)
    tensors = _without_wrappers(tensors, module)
    _check(module, tensors, source)
    module.load_state_dict(tensors)
    return module


def read_metadata(ref: str | Path) -> dict[str, str]:
    """The metadata of a saved network (what `save_model` was given, and the spec), without reading its weights."""
    safetensors = need("safetensors", extra="zoo")
    path = locate(ref)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (safetensors.SafetensorError, OSError) as cause:
        raise CheckpointError(f"{path} is not a whole safetensors file: {cause}") from cause


def has_spec(ref: str | Path) -> bool:
    """Whether `read_model` can rebuild the network from its file alone."""
    return SPEC in read_metadata(ref)


def locate(ref: str | Path) -> Path:
    """The safetensors file that `ref` means: a file, a run directory, or a name in the zoo (its hash is checked)."""
    path = Path(ref).expanduser()
    if path.is_dir():
        if (path / "model.safetensors").is_file():
            return path / "model.safetensors"
        if str(ref) not in zoo.entries():  # a folder may happen to have the name of a zoo model
            raise CheckpointError(f"{path} holds no model.safetensors: is it a run directory, and is the run finished?")
    elif path.is_file():
        if path.suffix != ".safetensors":
            raise CheckpointError(
                f"expected a .safetensors file, got {path}: use load_weights(module, path) for others"
            )
        return path
    elif path.suffix or path.is_absolute():
        raise CheckpointError(f"no such model file: {path}")
    if str(ref) in zoo.entries():
        return zoo.fetch(str(ref))
    raise CheckpointError(
        f"expected a file, a run directory or a model of the zoo, got {str(ref)!r}: {nearest(str(ref), zoo.entries())}"
    )


def _with_sorted_header(content: bytes) -> bytes:
    """The same file with the keys of its header in order: the library shuffles metadata, and equal networks should be
    equal files. Format: 8 bytes of header length, the header in JSON padded by blanks to 8 bytes, the tensors.
    """
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + length]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def _read(path: Path) -> dict[str, Tensor]:
    safetensors, torch_side = need("safetensors", extra="zoo"), need("safetensors.torch", extra="zoo")
    try:
        tensors: dict[str, Tensor] = torch_side.load_file(path)
    except (safetensors.SafetensorError, OSError) as cause:
        raise CheckpointError(f"{path} is not a whole safetensors file: {cause}") from cause
    return tensors


def _read_torch(path: Path) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings():  # torch remarks on the pickle protocol of files it then refuses
            warnings.simplefilter("ignore")
            read: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as cause:  # a foreign file fails in whatever way its bytes happen to mislead the reader
        # Torch's own words begin with advice on how to run the file's code all the same; the fault comes after them.
        words = str(cause).rpartition("WeightsUnpickler error:")[2].strip() or type(cause).__name__
        reason = words.splitlines()[0].partition(". ")[0]
        raise CheckpointError(
            f"{path} was refused: expected a torch file of tensors alone, readable with weights_only=True ({reason}). "
            "Save module.state_dict() instead of the module"
        ) from cause
    for key in ("state_dict", "model"):
        if isinstance(read, dict) and isinstance(read.get(key), dict):
            read = read[key]
    if not isinstance(read, dict) or not all(isinstance(value, Tensor) for value in read.values()):
        raise CheckpointError(f"expected a state dict (names to tensors) in {path}, got {type(read).__name__}")
    return read


def _without_wrappers(tensors: dict[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """The tensors under the names that most of `module`'s are, with as many wrappers' prefixes dropped as that takes.

    A module may have a child called "module" itself, so that its names begin like those of a wrapped one.
    """
    wanted = module.state_dict().keys()
    readings = [tensors]
    while prefix := next((p for p in PREFIXES if tensors and all(name.startswith(p) for name in tensors)), None):
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
        readings.append(tensors)
    return max(readings, key=lambda reading: len(wanted & reading.keys()))


def _check(module: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse weights that do not fit, and say how: torch's own message stops being readable past a few names."""
    wanted = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    differ = [f"{n} (expected {wanted[n]}, got {found[n]})" for n in wanted if n in found and wanted[n] != found[n]]
    faults = {
        "missing": [name for name in wanted if name not in found],
        "unexpected": [name for name in found if name not in wanted],
        "other shape": differ,
    }
    told = [f"{fault}: {_some(names)}" for fault, names in faults.items() if names]
    if told:
        raise CheckpointError(f"the weights in {path} do not fit {type(module).__name__}. " + "; ".join(told))


def _some(names: list[str], limit: int = 8) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
