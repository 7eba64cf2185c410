"""The zoo: trained networks that come with the package, each with its hash, its licence and its record.

`weights/index.json` maps a name such as "gtsrb/ig-sum-norm-tuned" to
{"file": name inside weights/, "sha256": of that file, "licence": of the weights, "record": what it scored and where}.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from robattr.errors import CheckpointError

FOLDER = Path(__file__).parent / "weights"


@dataclass(frozen=True)
class Entry:
    """One trained network."""

    file: str
    sha256: str
    licence: str
    record: str


def entries() -> dict[str, Entry]:
    """The index of the zoo, by name."""
    index = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))
    return {name: Entry(e["file"], e["sha256"], e["licence"], e["record"]) for name, e in index.items()}


def fetch(name: str) -> Path:
    """The file of the network `name`, once its SHA-256 is the one in the index."""
    entry = entries()[name]
    path = FOLDER / entry.file
    if not path.is_file():
        raise CheckpointError(f"the weights of {name!r} are not installed: expected {path}. Reinstall robattr")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != entry.sha256:
        raise CheckpointError(
            f"the weights of {name!r} are damaged: expected SHA-256 {entry.sha256}, got {found} for {path}. "
            "Reinstall robattr"
        )
    return path


def add(name: str, file: str | Path, *, record: str, licence: str) -> Entry:
    """Put a network file into the zoo under `name`. `record` is the file in results/ that vouches for its scores."""
    kept = f"{name.replace('/', '-')}.safetensors"
    shutil.copyfile(file, FOLDER / kept)
    entry = Entry(kept, hashlib.sha256((FOLDER / kept).read_bytes()).hexdigest(), licence, record)
    index = {**entries(), name: entry}
    text = json.dumps({key: asdict(index[key]) for key in sorted(index)}, indent=2, ensure_ascii=False)
    (FOLDER / "index.json").write_text(f"{text}\n", encoding="utf-8")
    return entry
