"""Records survive kills, torn lines, full disks and any number of processes, and never mix or repeat."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from robattr.errors import CheckpointError, InvalidInput
from robattr.evaluation.records import Records, merge, read

SETTINGS = {"protocol": "paper", "eps": 0.3, "bounds": (0.0, 1.0)}


def record(i: int) -> dict[str, object]:
    return {"id": i, "label": i % 10, "kendall": 1 / (i + 1), "note": "é" * (i % 3)}


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.iterdir())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records" / "paper-ig.jsonl"


def test_records_come_back_sorted_as_they_were(path):
    with Records(path, SETTINGS) as records:
        assert records.done == set()
        records.append([record(5), record(1)])
        records.append([])
        records.append([record(3)])
        assert read(path) == [record(1), record(3), record(5)]  # readable while it goes on
    assert merge(path, [3, 1, 5]) == [record(1), record(3), record(5)]
    assert read(path) == [record(1), record(3), record(5)]
    assert names(path) == ["paper-ig.jsonl", "paper-ig.settings"]
    assert path.read_bytes() == b"".join(json.dumps(record(i)).encode() + b"\n" for i in (1, 3, 5))


def test_every_value_becomes_strict_json(path):
    row = {
        "id": np.int64(4),
        "label": torch.tensor(7),
        "kendall": float("nan"),
        "scores": torch.tensor([1.0, float("inf")]),
        "diagnostics": {"gap": np.float32(0.5), "curve": (1, -np.inf), "name": None, "ok": np.bool_(True)},
    }
    with Records(path, SETTINGS) as records:
        records.append([row])
        assert records.done == {4}
    plain = {
        "id": 4,
        "label": 7,
        "kendall": None,
        "scores": [1.0, None],
        "diagnostics": {"gap": 0.5, "curve": [1, None], "name": None, "ok": True},
    }
    assert merge(path, [4]) == [plain]
    json.loads(path.read_text(), parse_constant=pytest.fail)


def test_a_line_cut_anywhere_is_dropped_and_written_again(path):
    with Records(path, SETTINGS) as records:
        records.append([record(0), record(1)])
        whole = len(json.dumps(record(0))) + 1
    shard = path.with_name("paper-ig.rank0-of-1.jsonl")
    content = shard.read_bytes()
    for cut in range(len(content) + 1):
        shard.write_bytes(content[:cut])
        kept = [0, 1][: (cut >= whole) + (cut == len(content))]
        with Records(path, SETTINGS) as records:
            assert records.done == set(kept)
            records.append([record(i) for i in (0, 1) if i not in kept])
        assert shard.read_bytes() == content
    shard.write_bytes(content + b"\0\0\0\0\n")  # what a power cut can leave
    with Records(path, SETTINGS) as records:
        assert records.done == {0, 1}
    assert shard.read_bytes() == content


def test_damage_before_the_end_is_an_error_not_a_gap(path):
    with Records(path, SETTINGS) as records:
        records.append([record(i) for i in range(3)])
    shard = path.with_name("paper-ig.rank0-of-1.jsonl")
    for damage in (b'{"id"', b"{}", b"[1]", b'{"id": true}'):
        lines = shard.read_bytes().split(b"\n")
        lines[1] = damage
        shard.write_bytes(b"\n".join(lines))
        with pytest.raises(CheckpointError, match="line 2 of"):
            Records(path, SETTINGS)
        with pytest.raises(CheckpointError, match="line 2 of"):
            read(path)


def test_other_settings_are_refused_by_name_and_leave_nothing_behind(path):
    with Records(path, SETTINGS) as records:
        records.append([record(0)])
    merge(path, [0])
    before = names(path)
    with pytest.raises(CheckpointError, match=r"eps 0\.3 → 0\.1.*seed None → 4"):
        Records(path, {**SETTINGS, "eps": 0.1, "seed": 4})
    assert names(path) == before
    path.with_suffix(".settings").unlink()
    with pytest.raises(CheckpointError, match="found none"):
        Records(path, SETTINGS)


def test_settings_without_a_record_bind_no_one(path):
    Records(path, {"eps": 1}).close()
    with Records(path, SETTINGS) as records:
        records.append([record(0)])
    stored = json.loads(path.with_suffix(".settings").read_text())
    assert stored == {"settings": {**SETTINGS, "bounds": [0.0, 1.0]}}


@pytest.mark.parametrize("content", [b"{bad", b"[1]", b"{}", b'{"settings": 3}', b"\xff"])
def test_damaged_settings_are_named(path, content):
    with Records(path, SETTINGS) as records:
        records.append([record(0)])
    note = path.with_suffix(".settings")
    note.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{note}, but it is damaged: .*--fresh"):
        Records(path, SETTINGS)
    note.unlink()
    with pytest.raises(CheckpointError, match=rf"expected {note} beside its records, found none: .*--fresh"):
        Records(path, SETTINGS)


def test_empty_settings_are_written_down(path):
    Records(path, {}).close()
    assert json.loads(path.with_suffix(".settings").read_text())["settings"] == {}


def test_settings_that_an_older_version_wrote_are_read(path):
    with Records(path, SETTINGS) as records:
        records.append([record(0)])
    note = path.with_suffix(".settings")
    note.write_text(json.dumps({"fingerprint": "0123456789abcdef", **json.loads(note.read_text())}))
    with Records(path, SETTINGS) as records:
        assert records.done == {0}


def test_nothing_is_counted_twice(path):
    with Records(path, SETTINGS) as records:
        records.append([record(0)])
        for rows in ([record(0)], [record(1), record(1)]):
            with pytest.raises(InvalidInput, match=r"expected each example once, got id \d again"):
                records.append(rows)
        for wrong in ({"id": "2"}, {"label": 3}, {"id": True}):
            with pytest.raises(InvalidInput, match="expected a record with a whole number as its id, got id"):
                records.append([wrong])
        assert records.done == {0}
    assert merge(path, [0]) == [record(0)]
    with Records(path, SETTINGS) as records:
        assert records.done == {0}


def test_one_writer_per_shard(path):
    with Records(path, SETTINGS) as records:
        with pytest.raises(CheckpointError, match="is writing it"):
            Records(path, SETTINGS)
        records.append([record(0)])
        Records(path, SETTINGS, rank=1, world=2).close()
    with pytest.raises(InvalidInput, match="expected 0 ≤ rank < world, got rank 2 of 2"):
        Records(path, SETTINGS, rank=2, world=2)


def test_a_failed_write_leaves_no_half_line(path, monkeypatch):
    real = os.write

    def full_disk(file: int, blob: bytes) -> int:
        if len(blob) < 40:
            raise OSError(28, "No space left on device")
        return real(file, bytes(blob[:25]))

    with Records(path, SETTINGS) as records:
        records.append([record(0)])
        monkeypatch.setattr(os, "write", full_disk)
        with pytest.raises(OSError, match="No space"):
            records.append([record(1), record(2)])
        monkeypatch.undo()
        assert records.done == {0}
        records.append([record(2), record(1)])
    assert merge(path, range(3)) == [record(i) for i in range(3)]


@pytest.mark.parametrize("worlds", [(1,), (2,), (3,), (3, 2), (2, 1), (1, 4)], ids=str)
def test_the_file_is_the_same_for_any_number_of_processes(tmp_path, worlds):
    """The last of `worlds` finishes what the others left half done."""
    ids = [40, 3, 17, 9, 8, 25, 1, 30, 12, 6, 21]
    path = tmp_path / "strict[sg].jsonl"
    for run, world in enumerate(worlds):
        for rank in reversed(range(world)):
            with Records(path, SETTINGS, rank=rank, world=world) as records:
                todo = [i for i in ids[rank::world] if i not in records.done]
                records.append([record(i) for i in (todo if run == len(worlds) - 1 else todo[:1])])
    merge(path, ids)
    expected = b"".join(json.dumps(record(i)).encode() + b"\n" for i in sorted(ids))
    assert path.read_bytes() == expected
    assert names(path) == ["strict[sg].jsonl", "strict[sg].settings"]


def test_an_incomplete_merge_says_so_and_loses_nothing(path):
    with Records(path, SETTINGS) as records:
        records.append([record(0), record(2)])
    before = names(path)
    with pytest.raises(CheckpointError, match=r"expected 3 examples.*got 2 \(id 1 is missing\)"):
        merge(path, range(3))
    assert names(path) == before
    with pytest.raises(CheckpointError, match="found none"):
        read(path.with_name("other.jsonl"))


def test_a_kill_between_merge_and_clean_up_repeats_nothing(path):
    with Records(path, SETTINGS) as records:
        records.append([record(0), record(1)])
    shard = path.with_name("paper-ig.rank0-of-1.jsonl")
    content = shard.read_bytes()
    merge(path, range(2))
    shard.write_bytes(content)
    assert [r["id"] for r in read(path)] == [0, 1]
    with Records(path, SETTINGS) as records:
        assert records.done == {0, 1}
        records.append([record(2)])
    assert merge(path, [0, 2]) == [record(0), record(2)]  # those asked for; the file keeps all
    assert [r["id"] for r in read(path)] == [0, 1, 2]


CHILD = """
import sys
from pathlib import Path
from robattr.evaluation.records import Records

with Records(Path(sys.argv[1]), {"eps": 0.3}) as records:
    for i in range(int(sys.argv[2])):
        records.append([{"id": i, "map": "x" * 50_000}])
"""


def test_sigkill_in_the_middle_of_writing_loses_and_repeats_nothing(path):
    """A process that does nothing but write is killed; the next one finishes its work."""
    total, shard = 100, path.with_name("paper-ig.rank0-of-1.jsonl")
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path), str(total)])
    while child.poll() is None and (shard.stat().st_size if shard.exists() else 0) < 12 * 50_000:
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL  # it was not done yet
    whole = shard.read_bytes().count(b"\n")
    with Records(path, {"eps": 0.3}) as records:
        assert records.done == set(range(whole))
        assert whole >= 11
        records.append([{"id": i, "map": "x" * 50_000} for i in range(whole, total)])
    assert shard.read_bytes().count(b"\n") == total
    assert merge(path, range(total)) == [{"id": i, "map": "x" * 50_000} for i in range(total)]
