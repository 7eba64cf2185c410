"""Networks on disk: safetensors files whose metadata says how the network is built. No code is ever unpickled."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robattr._extras import need
from robattr.engine.files import write_atomically
from robattr.errors import CheckpointError, InvalidInput, nearest
from robattr.models import zoo
from robattr.models.architecture import Spec, build

SPEC = "robattr.spec"  # the metadata key of the network's spec, in JSON
PREFIXES = ("module.", "_orig_mod.")  # added to every name by DataParallel and audits, and by torch.compile


def save_model(model: nn.Module, path: str | Path, metadata: Mapping[str, str] | None = None) -> Path:
    """Write `model`'s weights, its spec and `metadata` to a safetensors file, atomically.

    A network without a spec (not built by a function marked `@architecture`) is written too, but only `load_weights`
    can read it, into a module that the user builds.
    """
    notes = {"format": "pt", **(metadata or {})}
    if isinstance(spec := getattr(model, "spec", None), Spec):
        notes[SPEC] = spec.to_json()
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(model.state_dict(), target, notes)
    return target


def write_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    """Write a safetensors file atomically; equal content gives equal bytes."""
    safetensors = need("safetensors.torch", extra="zoo")
    # A copy of each tensor: tied weights share memory, which the format refuses.
    copies = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    write_atomically(path, _with_sorted_header(safetensors.save(copies, metadata=dict(metadata))))


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
    tensors = read_tensors(path)
    _check(shapes, tensors, path)
    with torch.random.fork_rng(devices=[]):
        model = build(spec).float()
    model.load_state_dict(tensors)
    return model


def load_weights(module: nn.Module, path: str | Path) -> nn.Module:
    """Copy the weights in `path` into `module` (every name and shape must match) and return it.

    `path` is a safetensors file or a torch file (.pt, .pth, .bin, .ckpt) that holds tensors only: it is read with
    `weights_only=True`, so a file that carries code is refused, not run. A state dict nested under "state_dict" or
    "model" is found, and the prefixes that DataParallel, torch.compile and `robattr.harden` add are dropped, where the
    names then fit better. Values are cast to the module's dtype and device.
    """
    source = Path(path)
    if source.is_dir():
        raise CheckpointError(f"expected a file of weights, got a folder: {source} (a run's are in model.safetensors)")
    if not source.is_file():
        raise CheckpointError(f"no such weight file: {source}")
    tensors = read_tensors(source) if source.suffix == ".safetensors" else _read_torch(source)
    tensors = _without_wrappers(tensors, module)
    _check(module, tensors, source)
    module.load_state_dict(tensors)
    return module


def read_metadata(ref: str | Path) -> dict[str, str]:
    """The metadata of a weights file (what `save_model` was given, and the spec), without reading its weights."""
    with _opened(locate(ref)) as file:
        return dict(file.metadata() or {})


def locate(ref: str | Path) -> Path:
    """The safetensors file of a reference: a file, a run directory, or a name of the zoo (its hash is checked)."""
    path = Path(ref).expanduser()
    if path.is_file():
        if path.suffix != ".safetensors":
            raise CheckpointError(
                f"expected a .safetensors file, got {path}: for weights that torch saved, robattr audit my_nets:make "
                f"--weights {path}, in Python load_weights(module, path)"
            )
        return path
    if (path / "model.safetensors").is_file():
        return path / "model.safetensors"
    known = zoo.entries()
    if str(ref) in known:
        return zoo.fetch(str(ref))
    expected = "a .safetensors file, a run directory with model.safetensors or a model of the zoo"
    raise CheckpointError(f"expected {expected}, got {str(ref)!r}: {nearest(str(ref), known)}")


def _with_sorted_header(content: bytes) -> bytes:
    """Sort the keys of the header, which the library shuffles, so that equal networks give equal files.

    Format: 8 bytes of header length, the header in JSON padded by blanks to 8 bytes, the tensors.
    """
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + length]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    safetensors = need("safetensors", extra="zoo")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            yield file
    except (safetensors.SafetensorError, OSError) as cause:
        raise CheckpointError(f"{path} is not a whole safetensors file: {cause}") from cause


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, by name."""
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _begins_as_torch(path: Path) -> bool:
    """As a zip file or a pickle does."""
    with path.open("rb") as file:
        return file.read(1) in (b"P", b"\x80")


def _read_torch(path: Path) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings():  # torch warns about the pickle protocol of files that it then refuses
            warnings.simplefilter("ignore")
            read: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as cause:  # foreign bytes can raise any error
        if not isinstance(cause, OSError) and not _begins_as_torch(path):
            raise CheckpointError(
                f"{path} was refused: it is not a torch file. Save module.state_dict() by torch.save"
            ) from cause
        # torch's message begins with advice on how to run the file's code anyway; the fault comes after it.
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
    """Drop as many wrapper prefixes as give the most names of `module`.

    A module may have a child called "module", so its own names may begin like those of a wrapped module.
    """
    wanted = module.state_dict().keys()
    return max(unwrapped(tensors), key=lambda reading: len(wanted & reading.keys()))


def unwrapped(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """`tensors`, and then without each wrapper prefix that all their names have."""
    found = [dict(tensors)]
    while prefix := next((p for p in PREFIXES if found[-1] and all(name.startswith(p) for name in found[-1])), None):
        found.append({name.removeprefix(prefix): value for name, value in found[-1].items()})
    return found


def _check(module: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse weights that do not fit, with a shorter message than torch's."""
    wanted = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    faults = {
        "missing": [name for name in wanted if name not in found],
        "unexpected": [name for name in found if name not in wanted],
        "other shape": [
            f"{name} (expected {shape}, got {found[name]})"
            for name, shape in wanted.items()
            if found.get(name, shape) != shape
        ],
    }
    told = [f"{fault}: {', '.join(names[:8])}{' …' * (len(names) > 8)}" for fault, names in faults.items() if names]
    if told:
        raise CheckpointError(f"the weights in {path} do not fit {type(module).__name__}. " + "; ".join(told))
