"""The run directory of an audit: continued by the same call, refused to any other."""

from __future__ import annotations

import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn

import robattr
from audit_fixtures import Plain, bars, taught
from robattr.attacks import from_callable, simple_gradient
from robattr.auditing import record
from robattr.auditing.as_dataset import as_dataset
from robattr.auditing.record import Settings, parse_maps
from robattr.engine.files import locked
from robattr.errors import CheckpointError, InvalidInput
from robattr.evaluation import for_dataset
from robattr.evaluation.records import read_settings
from robattr.evaluation.resume_checks import digest_of_weights
from robattr.reporting.html import write_page

QUICK = {"steps": 1, "points": 2, "examples": 6, "device": "cpu", "eps": 8 / 255, "protocol": "paper"}


@pytest.fixture
def plain() -> nn.Module:
    torch.manual_seed(0)
    return taught(Plain(), *bars())


class Stopped(Exception):
    """What ends an audit between two blocks."""


def test_an_interrupted_audit_continues_to_the_same_records(plain: nn.Module, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("robattr.evaluation.job.BATCH", (8, 8))  # 24 examples in three blocks
    net, data, settings = plain, bars(24), {**QUICK, "examples": 24}
    robattr.audit(net, data, out=tmp_path / "whole.html", **settings)

    def stop(title: str, done: int, total: int) -> None:
        if 0 < done < total:
            raise Stopped

    with pytest.raises(Stopped):
        robattr.audit(net, data, out=tmp_path / "torn.html", watch=stop, **settings)
    shard = tmp_path / "torn" / "records" / "paper-ig.from0.jsonl"
    assert 0 < shard.read_bytes().count(b"\n") < 24
    assert not (tmp_path / "torn.html").exists()
    seen: list[int] = []

    def see(title: str, done: int, total: int, unit: str = "examples") -> None:
        if unit == "examples":
            seen.append(done)

    robattr.audit(net, data, out=tmp_path / "torn.html", watch=see, **settings)
    assert seen[-1] == 24
    records = [tmp_path / name / "records" / "paper-ig.jsonl" for name in ("whole", "torn")]
    assert records[0].read_bytes() == records[1].read_bytes()
    assert (tmp_path / "torn.html").exists()


def test_only_the_same_audit_continues(plain: nn.Module, tmp_path: Path, monkeypatch) -> None:
    page = tmp_path / "audit.html"
    first = robattr.audit(plain, bars(), maps="ig,sg", out=page, **QUICK)
    files = [page.parent / "audit" / name for name in ("config.json", "environment.json", "records/paper-ig.jsonl")]
    with monkeypatch.context() as patch:  # nothing is attacked again
        patch.setattr("robattr.evaluation.job.evaluate_batch", None)
        again = robattr.audit(plain, bars(), maps="ig,sg", out=page, **QUICK)
    assert again.verdict == first.verdict
    about = [file.read_bytes() for file in files]

    def refused(match: str, data=None, **other: object) -> None:
        with pytest.raises(CheckpointError, match=match):
            robattr.audit(plain, data or bars(), maps="ig,sg", out=page, name="other", **{**QUICK, **other})

    refused("examples", data=bars(seed=2))
    for other in ({"eps": 0.1}, {"steps": 7}, {"points": 7}):
        refused("attack", **other)
    refused("precision", precision="bf16")
    kept = page.parent / "audit" / "certificates" / "ig.json"
    kept.parent.mkdir()
    kept.write_text("{}")  # of the old audit, too
    with torch.no_grad():
        plain.head.bias[0] += 0.1
    refused("weights")
    assert [file.read_bytes() for file in files] == about  # the records keep their model's name and command
    with locked(tmp_path / "audit" / "records", ".paper-sg.lock", shared=True):  # a process of that audit is alive
        refused("another process is writing", fresh=True)
    assert [file.read_bytes() for file in files] == about
    fresh = robattr.audit(plain, bars(), out=page, fresh=True, **QUICK)
    assert [e.summary["map"] for e in fresh.run.evaluations] == ["ig"]  # of the old audit nothing is left
    assert not kept.exists()


def test_iterations_are_those_of_the_attack_on_explanations() -> None:
    data = as_dataset(bars())
    few, many = (Settings(steps=steps).base(data) for steps in (2, 50))
    assert (few.steps, many.steps) == (2, 50)
    assert few.pgd_steps == many.pgd_steps == 40


@pytest.mark.parametrize("eps", [None, 0.1, 0.05])
def test_a_dataset_of_the_paper_has_the_settings_of_an_evaluation(eps: float | None) -> None:
    data = robattr.data.load("fashion-mini")
    evaluated = for_dataset(data) if eps is None else for_dataset(data).with_eps(eps)
    assert Settings(eps=eps).base(data) == replace(evaluated, name="paper")


def test_the_digest_of_weights_is_that_of_an_evaluation(plain: nn.Module, tmp_path: Path) -> None:
    """Not of the wrappers: an audit names every weight module.…, DataParallel once more."""
    x, y = bars(6)
    for net, name in ((plain, "audit"), (nn.DataParallel(plain), "parallel")):
        robattr.audit(net, (x, y), out=tmp_path / f"{name}.html", maps="sg", **{**QUICK, "examples": None})
    robattr.evaluate(
        plain, x, y, protocol=Settings(eps=8 / 255, steps=1, points=2).base(as_dataset((x, y))), map=simple_gradient(),
        out=tmp_path / "plain" / "records",
    )  # fmt: skip
    files = [tmp_path / name / "records" / "paper-sg.jsonl" for name in ("plain", "audit", "parallel")]
    digests = [read_settings(file)["weights"] for file in files]
    assert digests == [digest_of_weights(plain)] * 3
    assert digest_of_weights(nn.Sequential(plain)) != digests[0]  # other names are another network


def test_a_folder_of_something_else_is_not_used(plain: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("do not touch")
    with pytest.raises(CheckpointError, match="exists and is not an audit: choose another page"):
        robattr.audit(plain, bars(), out=tmp_path / "mine.html", **QUICK)
    assert [p.name for p in tmp_path.rglob("*")] == ["mine", "notes.txt"]


def test_a_start_that_was_killed_is_not_in_the_way(plain: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    for name in (".lock", ".config.json.123.tmp"):  # what a kill before config.json leaves
        (tmp_path / "audit" / name).touch()
    assert robattr.audit(plain, bars(), out=tmp_path / "audit.html", **QUICK).page


def test_an_audit_whose_records_were_removed_says_so(plain: nn.Module, tmp_path: Path, monkeypatch) -> None:
    def write(runs, page, **settings):
        written = write_page(runs, page, **settings)
        shutil.rmtree(tmp_path / "audit")
        return written

    monkeypatch.setattr(import_module("robattr.auditing.audit"), "write_page", write)  # the room has a function audit
    with pytest.raises(CheckpointError, match="audit was removed during the audit, and the records with it"):
        robattr.audit(plain, bars(), out=tmp_path / "audit.html", **QUICK)


def test_own_maps_are_compiled_on_request_and_those_of_other_libraries_never(plain, monkeypatch) -> None:
    asked: dict[str, bool] = {}
    evaluate = record.evaluate

    def noted(*args, **settings):
        asked[settings["map"].name] = settings.pop("compiled")
        return evaluate(*args, **settings)

    monkeypatch.setattr(record, "evaluate", noted)
    robattr.audit(plain, bars(), maps="sg,captum:Saliency", compiled=True, **{**QUICK, "examples": 3})
    assert asked == {"sg": True, "captum-Saliency": False}


def test_maps_by_name_and_value() -> None:
    assert [m.name for m in parse_maps("ig, captum:Saliency", points=5)] == ["ig", "captum-Saliency"]
    assert parse_maps("ig", points=5)[0].nodes == 5
    assert parse_maps(simple_gradient()) == [simple_gradient()]
    with pytest.raises(InvalidInput, match="name of a map"):
        parse_maps([from_callable(lambda m, x, y: x, name="../evil")])
    for function in (lambda m, x, y: x, [lambda m, x, y: x]):
        with pytest.raises(InvalidInput, match=r"got function: .*from_callable"):
            parse_maps(function)  # type: ignore[arg-type]
