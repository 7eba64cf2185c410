"""Calls from Python with a value of the wrong type are refused with what was expected, before anything is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import robattr
from audit_fixtures import Plain, bars
from robattr import IFIA, PGD, LinfBall, PGDAttack, TrainConfig, data, objectives, recipes
from robattr.attacks import integrated_gradients, simple_gradient
from robattr.auditing import Plan
from robattr.auditing.record import Settings
from robattr.certificates import Smoothing
from robattr.errors import RobattrError
from robattr.evaluation import scaled

torch.manual_seed(0)
NET = Plain().eval()
X, _ = bars(12)
Y = NET(X).argmax(dim=1)  # each classified correctly: none is refused for that
PROTOCOL = scaled("bars", pixels=64, bounds=(0.0, 1.0))
QUICK: dict[str, Any] = {"device": "cpu", "steps": 1, "points": 1, "maps": "sg", "protocol": "paper"}


def audit(model: Any = NET, given: Any = (X, Y), **settings: Any) -> object:
    return robattr.audit(model, given, **{**QUICK, **settings})


def harden(model: Any = NET, given: Any = (X, Y), **settings: Any) -> object:
    return robattr.harden(model, given, **{"device": "cpu", "held_out": 0.25, **settings})


def doctor(given: Any = None, **settings: Any) -> None:
    if fault := next(
        (c for c in robattr.doctor(NET, given, device="cpu", **settings).checks if c.level == "fail"), None
    ):
        raise RobattrError(fault.finding)


def certify(x: Any = X, y: Any = Y, **settings: Any) -> object:
    return robattr.certify(NET, x, y, map="sg", device="cpu", **{"samples": 10, "alpha": 0.1, **settings})


def ifia(model: Any = NET, x: Any = X, y: Any = Y, *, ids: Any = None, **settings: Any) -> object:
    return IFIA(model, **{"eps": 0.1, "alpha": 0.1, "steps": 1, "map": simple_gradient(), **settings})(x, y, ids=ids)


def pgd(model: Any = NET, x: Any = X, y: Any = Y, *, ids: Any = None, **settings: Any) -> object:
    return PGDAttack(model, **{"eps": 0.1, "alpha": 0.1, "steps": 1, **settings})(x, y, ids=ids)


def train(out: Any = "run", **settings: Any) -> object:
    return robattr.train(TrainConfig(dataset="fashion-mini", method="natural", steps=1), out, device="cpu", **settings)


ATTACKS = [
    (lambda attack=attack, settings=settings: attack(**settings), match)
    for attack in (ifia, pgd)
    for settings, match in (
        ({"x": X.numpy()}, "x to be a floating-point tensor, got ndarray"),
        ({"x": X.tolist()}, "x to be a floating-point tensor, got list"),
        ({"x": X.double()}, "of one dtype on one device, got torch.float64"),
        ({"y": Y.numpy()}, "integer class labels y, got ndarray"),
        ({"y": Y.float()}, "integer class labels y"),
        ({"y": torch.eye(3)[Y]}, "integer class labels y, got torch.float32"),
        ({"y": Y + 9}, r"labels in 0\.\.2"),
        ({"eps": "0.1"}, "eps to be a number, got '0.1'"),
        ({"alpha": None}, "alpha to be a number, got None"),
        ({"steps": 2.5}, r"steps to be a whole number, got 2\.5"),
        ({"restarts": True}, "restarts to be a whole number, got True"),
        ({"bounds": (0.0,)}, r"bounds \(low, high\) with low < high"),
        ({"bounds": ("0", "1")}, r"bounds \(low, high\) with low < high"),
        ({"ids": [-1] * 12}, "12 ids, one per example, whole numbers of at least 0"),
    )
]
CALLS: list[tuple[Callable[[], object], str]] = [
    *ATTACKS,
    (lambda: ifia(Plain), "model to be a Module, got <class"),
    (lambda: ifia(NET.forward), "model to be a Module"),
    (lambda: ifia(map="ig"), "map to be a AttributionMap, got 'ig'"),
    (lambda: ifia(source="net"), "source to be a Module"),
    (lambda: ifia(kind=None), "unknown kind of attribution attack None"),
    (lambda: ifia(k=0), "k of at least 1, got 0"),
    (lambda: ifia(every=0), "every of at least 1"),
    (lambda: pgd("net"), "expected a model .* got str"),
    (lambda: pgd(Plain), "got the class Plain: call it"),
    (lambda: pgd(loss=nn.CrossEntropyLoss()), r"a loss \(model, x, y\) -> \(B,\), .* got CrossEntropyLoss"),
    (lambda: integrated_gradients(2)(NET, X.numpy(), Y), "x to be a floating-point tensor"),
    (lambda: integrated_gradients(2)(NET, X, Y + 9), r"labels in 0\.\.2"),
    (lambda: objectives.madry(LinfBall(0.1), PGD(1, 0.1))(Plain, X, Y), "got the class Plain"),
    (lambda: LinfBall(0.1, ("0", "1")), r"bounds \(low, high\) with low < high"),
    (lambda: LinfBall(True), "finite radius ε ≥ 0, got True"),
    (lambda: robattr.smooth(NET, "big"), "finite softplus sharpness beta"),
    (lambda: audit(steps="3"), "steps to be a whole number or None, got '3'"),
    (lambda: audit(seed=None), "seed to be a whole number, got None"),
    (lambda: audit(examples=2.5), r"examples to be a whole number or None, got 2\.5"),
    (lambda: audit(given=5), "expected a dataset of .* got int"),
    (lambda: audit(bounds=("0", "1")), r"bounds \(low, high\) with low < high"),
    (lambda: audit(device=None), "unknown device None"),
    (lambda: audit(maps=5), "maps by name, such as 'ig,sg', or a list of maps, got 5"),
    (lambda: audit(protocol=None), "unknown protocol None"),
    (lambda: audit(precision=16), "unknown precision 16"),
    (lambda: audit(preprocessing="imagenet"), r"preprocessing=dict\(mean=…, std=…\), got 'imagenet'"),
    (lambda: audit(preprocessing={"mean": "0.5"}), "numbers as mean and std, .* got '0.5'"),
    (lambda: audit(classes="cat,dog,owl"), "a list of names as classes"),
    (lambda: audit(classes={"cat", "dog", "owl"}), "a list of names as classes"),
    (lambda: audit(out=5), "a path as out, such as .* got 5"),
    (lambda: harden(out=None), "a path as out, such as .* got None"),
    (lambda: harden(steps="3"), "whole number of steps ≥ 1, got '3'"),
    (lambda: harden(lr="1e-4"), "lr to be a number, got '1e-4'"),
    (lambda: harden(held_out="0.1"), "shares >= 0"),
    (lambda: harden(changes=["weight"]), "changes=dict"),
    (lambda: doctor(shape="3,8,8"), r"a shape of positive whole numbers, such as \(3, 224, 224\), got '3,8,8'"),
    (lambda: doctor(shape=(1, 8, 8), plan={"m": 2}), r"a plan such as robattr.auditing.Plan\(m=10\)"),
    (lambda: certify(x=X.numpy()), "x to be a Tensor, got ndarray"),
    (lambda: certify(y=Y.tolist()), "y to be a Tensor, got list"),
    (lambda: certify(bounds=None), r"bounds \(low, high\) with low < high"),
    (lambda: certify(sigma="0.1"), "sigma to be a number, got '0.1'"),
    (lambda: certify(radius="0.1"), "radii above 0, got '0.1'"),
    (lambda: train(None), "a path as out, such as .* got None"),
    (lambda: train(dataset="fashion-mini"), "dataset to be a Dataset, got 'fashion-mini'"),
    (lambda: train(model=Plain), "model to be a Module, got <class"),
    (lambda: TrainConfig(steps="100"), "steps to be a whole number, got '100'"),  # type: ignore[arg-type]
    (lambda: TrainConfig(batch=2.5), r"batch to be a whole number, got 2\.5"),  # type: ignore[arg-type]
    (lambda: TrainConfig(lr=None), "lr to be a number, got None"),  # type: ignore[arg-type]
    (lambda: replace(PROTOCOL, eps="0.1"), "eps to be a number, got '0.1'"),
    (lambda: scaled("bars", pixels=64, bounds=(0.0, 1.0), eps="0.1"), "eps must be a number above 0"),  # type: ignore[arg-type]
    (lambda: data.load(None), "None"),  # type: ignore[arg-type]
    (lambda: recipes.get(5), "5"),  # type: ignore[arg-type]
    (lambda: robattr.load_model("gtsrb/madry", device="gpu"), "unknown device 'gpu'"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "match"), CALLS, ids=[match for _, match in CALLS])
def test_a_value_of_another_type_is_refused(
    call: Callable[[], object], match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RobattrError, match=match):
        call()


def test_scalars_of_numpy_and_torch_are_numbers() -> None:
    run = TrainConfig(steps=np.int64(5), eps=np.float32(0.5), lr=torch.tensor(0.25))  # type: ignore[arg-type]
    assert [type(value) for value in (run.steps, run.eps, run.lr)] == [int, float, float]
    assert (run.steps, run.eps, run.lr) == (5, 0.5, 0.25)
    assert type(Settings(seed=np.int64(3)).seed) is int  # type: ignore[arg-type]
    assert type(Smoothing(samples=np.int64(30)).samples) is int  # type: ignore[arg-type]
    assert Plan(m=3).m == 3
