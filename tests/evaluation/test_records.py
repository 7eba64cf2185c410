"""Records survive kills and any number of processes, and never mix or repeat."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from forked import start
from robattr.errors import CheckpointError
from robattr.evaluation import records
from robattr.evaluation.records import append, begin, discard, merge, read

SETTINGS = {"protocol": "paper", "eps": 0.3, "bounds": (0.0, 1.0)}


def record(i: int) -> dict[str, object]:
    return {"id": i, "label": i % 10, "kendall": 1 / (i + 1), "note": "é" * (i % 3)}


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.iterdir())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records" / "paper-ig.jsonl"


def test_records_come_back_sorted_as_they_were(path):
    assert begin(path, SETTINGS) == set()
    append(path, [record(5), record(1)])
    append(path, [record(3)])
    assert begin(path, SETTINGS) == {1, 3, 5}
    assert read(path) == [record(1), record(3), record(5)]  # readable while it goes on
    merge(path, [3, 1, 5])
    assert read(path) == [record(1), record(3), record(5)]
    assert names(path) == ["paper-ig.jsonl", "paper-ig.settings"]
    assert path.read_bytes() == b"".join(json.dumps(record(i)).encode() + b"\n" for i in (1, 3, 5))


def test_records_without_their_torn_end_are_continued(path):
    begin(path, SETTINGS)
    lines = [json.dumps(record(i)).encode() + b"\n" for i in (0, 1)]
    path.write_bytes(lines[0] + lines[1][:10])
    assert begin(path, SETTINGS) == {0}
    append(path, [record(1)])
    merge(path, [0, 1])
    assert path.read_bytes() == b"".join(lines)
    assert names(path) == ["paper-ig.jsonl", "paper-ig.settings"]


def test_a_batch_that_appears_during_the_merge_is_not_lost(path, monkeypatch):
    begin(path, SETTINGS)
    append(path, [record(0)])
    lines = records._lines

    def late(of: Path) -> dict[int, bytes]:
        found = lines(of)
        append(path, [record(7)])
        return found

    with monkeypatch.context() as patch:
        patch.setattr(records, "_lines", late)
        merge(path, [0])
    assert read(path) == [record(0), record(7)]


def test_the_files_of_one_evaluation_are_discarded(path):
    """Those of a map whose name begins alike stay."""
    path.parent.mkdir()
    mine = ["paper-ig.json", "paper-ig.jsonl", "paper-ig.settings", "paper-ig-gallery.npz", "paper-ig.from0.jsonl"]
    others = ["paper-ig-mine.jsonl", "paper-ig-mine-gallery.npz", "paper-ig2.json", ".paper-ig.lock"]
    others.append("paper-ig.5.jsonl")  # of a radius, for instance
    for name in (*mine, *others):
        path.with_name(name).touch()
    assert begin(path, SETTINGS) == set()
    path.with_name("paper-ig.5.jsonl").write_bytes(json.dumps(record(0)).encode() + b"\n")
    assert begin(path, SETTINGS) == set()
    discard(path)
    assert names(path) == sorted(others)


def test_damage_is_an_error_not_a_gap(path):
    begin(path, SETTINGS)
    append(path, [record(i) for i in range(3)])
    part = path.with_name("paper-ig.from0.jsonl")
    for damage in (
        b'{"id"',
        b"{}",
        b"[1]",
        b'{"id": null}',
        b'{"id": "a"}',
        b'{"id": 1, "insertion": "a"}',
        b'{"id": 0}',
    ):
        lines = part.read_bytes().split(b"\n")
        lines[1] = damage
        part.write_bytes(b"\n".join(lines))
        with pytest.raises(CheckpointError, match="line 2 of"):
            begin(path, SETTINGS)
        with pytest.raises(CheckpointError, match="line 2 of"):
            read(path)


def test_other_settings_are_refused_by_name_and_leave_nothing_behind(path):
    begin(path, SETTINGS)
    append(path, [record(0)])
    merge(path, [0])
    before = names(path)
    with pytest.raises(CheckpointError, match=r"eps 0\.3 → 0\.1.*seed None → 4"):
        begin(path, {**SETTINGS, "eps": 0.1, "seed": 4})
    assert names(path) == before


def test_settings_without_a_record_bind_no_one(path):
    begin(path, {"eps": 1})
    begin(path, SETTINGS)
    stored = json.loads(path.with_suffix(".settings").read_text())
    assert stored == {"settings": {**SETTINGS, "bounds": [0.0, 1.0]}}


@pytest.mark.parametrize("content", [b"{bad", b"[1]", b"{}", b'{"settings": 3}', b"\xff"])
def test_damaged_settings_are_named(path, content):
    begin(path, SETTINGS)
    append(path, [record(0)])
    note = path.with_suffix(".settings")
    note.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{note}, but it is damaged: .*--fresh"):
        begin(path, SETTINGS)
    note.unlink()
    with pytest.raises(CheckpointError, match=rf"expected {note} beside its records, found none: .*--fresh"):
        begin(path, SETTINGS)


def test_settings_that_an_older_version_wrote_are_read(path):
    begin(path, SETTINGS)
    append(path, [record(0)])
    note = path.with_suffix(".settings")
    note.write_text(json.dumps({"fingerprint": "0123456789abcdef", **json.loads(note.read_text())}))
    assert begin(path, SETTINGS) == {0}


@pytest.mark.parametrize("worlds", [(1,), (2,), (3,), (3, 2), (2, 1), (1, 4)], ids=str)
def test_the_file_is_the_same_for_any_number_of_processes(tmp_path, worlds):
    """The last of `worlds` finishes what the others left half done."""
    ids = [40, 3, 17, 9, 8, 25, 1, 30, 12, 6, 21]
    path = tmp_path / "strict[sg].jsonl"
    for run, world in enumerate(worlds):
        done = begin(path, SETTINGS)
        for rank in reversed(range(world)):
            todo = [i for i in ids[rank::world] if i not in done]
            if rows := [record(i) for i in (todo if run == len(worlds) - 1 else todo[:1])]:
                append(path, rows)
    merge(path, ids)
    expected = b"".join(json.dumps(record(i)).encode() + b"\n" for i in sorted(ids))
    assert path.read_bytes() == expected
    assert names(path) == ["strict[sg].jsonl", "strict[sg].settings"]


def test_an_incomplete_merge_says_so_and_loses_nothing(path):
    begin(path, SETTINGS)
    append(path, [record(0), record(2)])
    before = names(path)
    with pytest.raises(CheckpointError, match=r"expected 3 examples.*got 2 \(id 1 is missing\)"):
        merge(path, range(3))
    assert names(path) == before
    with pytest.raises(CheckpointError, match="found none"):
        read(path.with_name("other.jsonl"))


def test_a_kill_between_merge_and_clean_up_repeats_nothing(path):
    begin(path, SETTINGS)
    append(path, [record(0), record(1)])
    part = path.with_name("paper-ig.from0.jsonl")
    content = part.read_bytes()
    merge(path, range(2))
    part.write_bytes(content)
    assert [r["id"] for r in read(path)] == [0, 1]
    assert begin(path, SETTINGS) == {0, 1}
    append(path, [record(2)])
    merge(path, [0, 2])
    assert [r["id"] for r in read(path)] == [0, 1, 2]  # the file keeps all


def write(path: Path, total: int) -> None:
    begin(path, {"eps": 0.3})
    for i in range(total):
        append(path, [{"id": i, "map": "x" * 50_000}])


def test_sigkill_in_the_middle_of_writing_loses_and_repeats_nothing(path):
    """A process that does nothing but write is killed; the next one finishes its work."""
    total = 1000
    child = start(write, path, total, log=path.parents[1] / "log")
    while child.is_alive() and not path.with_name("paper-ig.from11.jsonl").exists():
        time.sleep(0.001)
    child.kill()
    child.join()
    assert child.exitcode == -signal.SIGKILL  # it was not done yet
    done = begin(path, {"eps": 0.3})
    assert done == set(range(len(done)))
    assert 12 <= len(done) < total
    append(path, [{"id": i, "map": "x" * 50_000} for i in range(len(done), total)])
    merge(path, range(total))
    assert read(path) == [{"id": i, "map": "x" * 50_000} for i in range(total)]
