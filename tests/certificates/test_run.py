"""Certificates of many examples: records, resumption, repeats, summaries, and a challenge of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from evaluation_fixtures import toy_case
from memory_fixtures import DEVICES, Memory
from robattr.attacks import from_callable, simple_gradient
from robattr.certificates import Challenge, Examples, Smoothing, attack_certificates, certify
from robattr.certificates.certificate import bounds_from
from robattr.certificates.record import packed, unpacked
from robattr.certificates.run import seconds_per_copy
from robattr.certificates.smoothing import tally
from robattr.certificates.summary import in_units
from robattr.errors import CheckpointError, InvalidInput, UnsupportedModel
from robattr.evaluation import OutputDir

SMALL = Smoothing(sigma=0.1, samples=60, alpha=0.05, top=0.2)
RADII = (0.02, 0.05)


@pytest.fixture(scope="module")
def examples() -> Examples:
    net, x, y = toy_case()
    return Examples(net, simple_gradient(), x, y, list(range(20, 32)), SMALL)


def records(folder: Path) -> bytes:
    return (folder / "sg.jsonl").read_bytes()


def test_certificates_are_those_of_the_counts(examples: Examples) -> None:
    found = certify(examples, RADII)
    expected = tally(examples.model, examples.map, examples.x, examples.y, ids=examples.ids, smoothing=SMALL)
    direct = bounds_from(expected, SMALL).at(0.05)
    for name in ("answer", "inside", "outside", "overlap", "cosine"):
        np.testing.assert_allclose(getattr(found.at(0.05), name), getattr(direct, name), rtol=1e-6)
    assert found.shape == (6, 6)
    row = found.summary["radii"][1]
    assert row["radius"] == 0.05
    assert row["answer"]["value"] == pytest.approx(direct.answer.mean())
    assert row["cosine"]["value"] == pytest.approx(direct.cosine[direct.answer].mean())
    assert row["overlap"]["n"] == direct.answer.sum()
    assert found.summary["columns"]["nat_acc"]["value"] == pytest.approx(10 / 12)
    assert [each[1] for each in found.summary["per_example"]["inside"]] == direct.inside.sum(axis=1).tolist()


def test_records_repeat_exactly_and_another_radius_costs_nothing(
    examples: Examples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = certify(examples, RADII, out=OutputDir(tmp_path / "a"))
    assert certify(examples, RADII, out=OutputDir(tmp_path / "b")).records == first.records
    assert records(tmp_path / "a") == records(tmp_path / "b")
    monkeypatch.setattr("robattr.certificates.examples.tally", lambda *_, **__: pytest.fail("counted again"))
    again = certify(examples, [0.03], out=OutputDir(tmp_path / "a"))
    assert again.summary["radii"][0]["radius"] == 0.03
    np.testing.assert_array_equal(again.at(0.05).inside, first.at(0.05).inside)


def test_a_stopped_run_continues(examples: Examples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robattr.certificates.examples.rows_that_fit", lambda *_, passes: 4 * SMALL.samples)
    whole, copies = tmp_path / "whole", SMALL.copies
    seen: list[int] = []
    certify(examples, RADII, out=OutputDir(whole), progress=lambda done, total: seen.append(done))
    assert (seen[0], seen[-1]) == (0, 12 * copies)

    def stop(done: int, total: int) -> None:
        assert total == 12 * copies
        if done >= 6 * copies:  # in the second batch of four
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        certify(examples, RADII, out=OutputDir(tmp_path), progress=stop)
    seen.clear()
    certify(examples, RADII, out=OutputDir(tmp_path), progress=lambda done, total: seen.append(done))
    assert seen[0] == 4 * copies  # the first batch was there
    assert records(tmp_path) == records(whole)
    assert not list(tmp_path.glob("*.from*"))


def test_an_attack_takes_as_many_examples_as_fit_with_its_own_copies(
    examples: Examples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robattr.certificates.examples.rows_that_fit", lambda *_, passes: 4 * SMALL.samples)
    sizes: list[int] = []
    for name in ("counted", "attacked"):
        real = getattr(Examples, name)

        def watched(self: Examples, at: Any, passed: Any, real: Any = real, **known: Any) -> Any:
            sizes.append(len(at))
            return real(self, at, passed, **known)

        monkeypatch.setattr(Examples, name, watched)
    found = certify(examples, RADII)
    attack_certificates(examples, found, 0.05, Challenge(radius=0.05, steps=1, draws=40), out=OutputDir(tmp_path))
    assert sizes == [4, 4, 4, 6, 6]


def test_a_model_is_checked_before_it_is_measured(examples: Examples) -> None:
    wide = replace(examples, x=examples.x.repeat(1, 1, 1, 2))
    with pytest.raises(UnsupportedModel):
        certify(wide, RADII)


def test_the_seconds_of_all_commands_add_up(
    examples: Examples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robattr.certificates.examples.rows_that_fit", lambda *_, passes: 4 * SMALL.samples)
    now, place = [0.0], OutputDir(tmp_path)
    monkeypatch.setattr("robattr.certificates.run.time", SimpleNamespace(monotonic=lambda: now[0]))

    def batches(*seconds: float) -> dict[str, Any]:
        """Let each batch of four examples take so long; without an entry it is interrupted."""
        left = list(seconds)

        def tick(done: int, total: int) -> None:
            if done % (4 * SMALL.copies) == 0 and seen and done > seen[-1]:
                if not left:
                    raise KeyboardInterrupt
                now[0] += left.pop(0)
            seen.append(done)

        seen: list[int] = []
        return certify(replace(examples), RADII, out=place, progress=tick).summary

    with pytest.raises(KeyboardInterrupt):
        batches(100.0)
    now[0] += 1000  # nothing runs
    assert batches(7.0, 5.0)["seconds"] == 112
    assert batches()["seconds"] == 112  # all were recorded


@pytest.mark.parametrize("device", DEVICES)
def test_where_memory_runs_out_certificates_go_on_in_parts(device: str, tmp_path: Path) -> None:
    """From the middle of the counts on, and in the attacks; the progress counts no copy twice."""
    memory = Memory(device)
    net = memory.net()
    x = torch.rand(12, 1, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = net(x.to(device)).argmax(dim=1).cpu()
    how = Challenge(0.05, steps=2, draws=4)

    def found(name: str, limit: Callable[[], None] = lambda: None) -> tuple[list[Any], list[float]]:
        few = Examples(net, simple_gradient(), x, y, list(range(12)), SMALL)
        seen: list[int] = []

        def progress(done: int, total: int) -> None:
            seen.append(done)
            if done:
                limit()

        made = certify(few, RADII, out=OutputDir(tmp_path / name), progress=progress)
        assert seen[-1] == 12 * SMALL.copies
        attacked = attack_certificates(few, made, 0.05, how, out=OutputDir(tmp_path / name))
        exact = [(r["id"], r["answers"], r["votes"], r["correct"]) for r in made.records]
        return [*exact, attacked["broken"]], [*(r["along"] for r in made.records), attacked["worst"]["cosine"]]

    with memory.measured():
        whole = found("whole")
    assert memory.failures == 0
    with ExitStack() as limits:
        scarce = iter([memory.scarce(0.3)])
        parts = found("parts", lambda: [limits.enter_context(limit) for limit in scarce] and None)
    assert memory.failures > 0
    assert parts[0] == whole[0]
    assert parts[1] == pytest.approx(whole[1], abs=1e-9)


def test_records_of_another_model_map_or_noise_are_refused(examples: Examples, tmp_path: Path) -> None:
    place = OutputDir(tmp_path)
    certify(examples, RADII, out=place)
    other = replace(examples, smoothing=replace(SMALL, sigma=0.2))
    with pytest.raises(CheckpointError, match=r"sigma 0\.1 → 0\.2"):
        certify(other, RADII, out=place)
    mirrored = from_callable(lambda model, x, y: x.flip(-1).square(), name="sg")
    with pytest.raises(CheckpointError, match="another of that name"):
        certify(replace(examples, map=mirrored), RADII, out=place)
    with pytest.raises(CheckpointError, match="got others"):
        certify(replace(examples, x=examples.x.flip(0)), RADII, out=place)
    certify(other, RADII, out=replace(place, fresh=True))
    assert json.loads((tmp_path / "sg.json").read_text())["settings"]["sigma"] == 0.2


def test_edited_records_and_summaries_are_refused(examples: Examples, tmp_path: Path) -> None:
    place, summary, lines = OutputDir(tmp_path), tmp_path / "sg.json", tmp_path / "sg.jsonl"
    certify(examples, RADII, out=place)
    certify(examples, [0.03], out=place)
    text, said = lines.read_text(), summary.read_text()
    first, _, rest = text.partition("\n")
    answers = json.loads(first)["answers"]
    for changed in (text.replace(f'"answers": {answers}', f'"answers": {answers - 1}', 1), rest):
        lines.write_text(changed)
        with pytest.raises(CheckpointError, match=r"sg\.json does not agree with its records .*--fresh"):
            certify(examples, RADII, out=place)
    lines.write_text(text)
    summary.write_text(said.replace('"examples": 12', '"examples": 13'))
    with pytest.raises(CheckpointError, match="it was edited"):
        certify(examples, RADII, out=place)
    summary.write_text(said[:100])  # torn: made again
    assert certify(examples, [0.03], out=place).summary["examples"] == 12
    lines.write_text(rest)
    certify(examples, RADII, out=replace(place, fresh=True))
    assert records(tmp_path).decode() == text


def test_a_challenge_is_recorded_and_repeats(examples: Examples, tmp_path: Path) -> None:
    place, few = OutputDir(tmp_path), replace(examples, x=examples.x[:3], y=examples.y[:3], ids=examples.ids[:3])
    found = certify(few, RADII, out=place)
    how = Challenge(0.05, steps=2, draws=4)
    made = attack_certificates(few, found, 0.05, how, out=place)
    assert made["broken"] == {"answer": 0, "pixels": 0, "overlap": 0, "cosine": 0}
    assert made["examples"] == 3
    assert made["kinds"] == ["answer", "cosine", "topk"]
    lines = [json.loads(line) for line in (tmp_path / "sg-attack-0.05.jsonl").read_text().splitlines()]
    assert all(0 < each["moved"] <= 0.05 for line in lines for each in line["attacks"].values())
    assert made["worst"]["cosine"] == pytest.approx(
        np.mean([min(each["cosine"] for each in line["attacks"].values()) for line in lines])
    )
    without = attack_certificates(few, found, 0.05, how)
    timed = ("seconds", "finished")
    assert all(made[key] == value for key, value in without.items() if key not in timed)
    assert made.keys() - without.keys() == {"records", "file", "digest"}
    attack_certificates(few, found, 0.02, how, out=place)  # a bound that is claimed for more than it says
    assert (tmp_path / "sg-attack-0.02-within-0.05.json").is_file()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ids": [1] * 12}, "different ids"),
        ({"y": torch.zeros(3).long()}, "12 examples, 3 labels"),
        ({"y": torch.full((12,), 7)}, r"labels in 0\.\.2"),
        ({"bounds": (0.0, 0.5)}, "bounds"),
    ],
)
def test_examples_that_cannot_be_certified_are_refused(
    examples: Examples, change: dict[str, object], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        certify(replace(examples, **change), RADII)  # type: ignore[arg-type]


def test_radii_must_be_positive(examples: Examples) -> None:
    with pytest.raises(InvalidInput, match="radii above 0"):
        certify(examples, [0.0])


def test_any_model_and_shape(tmp_path: Path) -> None:
    """A table, in double precision, on a model with dropout in train mode, which stays as it was."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)).double()
    x = torch.rand(4, 5).double()
    y: Tensor = net.eval()(x).argmax(dim=1)
    net.train()
    found = certify(Examples(net, simple_gradient(), x, y, [0, 1, 2, 3], SMALL), RADII)
    assert net.training
    assert found.shape == (5,)
    assert seconds_per_copy(Examples(net, simple_gradient(), x, y, [0, 1, 2, 3], SMALL)) > 0


def test_votes_are_packed_without_loss() -> None:
    counts = np.random.default_rng(0).integers(0, 100_000, 784)
    np.testing.assert_array_equal(unpacked(packed(counts)), counts)
    with pytest.raises(CheckpointError, match="damaged"):
        unpacked("AAAA")


def test_a_radius_in_words() -> None:
    assert in_units(0.1, (1, 28, 28), (0.0, 1.0)) == (
        "one value by 25.5 of 255 grey levels, or each of the 784 values by 0.911"
    )
    assert in_units(0.1, (1, 28, 28), (0.0, 1.0)) == in_units(25.5, (1, 28, 28), (0.0, 255.0))
    assert in_units(0.3, (9,), (-1.0, 1.0)) == "one value by 0.3, or each of the 9 values by 0.1, of a range of 2"
