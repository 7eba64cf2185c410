"""The zoo: trained networks in the package, each with its hash, its licence, its card and its record in results/.

`weights/index.json` maps a name such as "gtsrb/ig-sum-norm-tuned" to
{"file": name inside weights/, "sha256": of that file, "licence": of the weights, "record": the file with its scores}.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
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

    @property
    def card(self) -> Path:
        """What it was trained on and how, what was measured, and its licence, as Markdown."""
        return (FOLDER / self.file).with_suffix(".md")


def entries() -> dict[str, Entry]:
    """The index of the zoo, by name."""
    index = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))
    return {name: Entry(**entry) for name, entry in index.items()}


def fetch(name: str) -> Path:
    """The weights file of `name`, after checking its SHA-256."""
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
