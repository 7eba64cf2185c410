"""Objectives of the user's own: trained, resumed, swept and recognised like the methods."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from functools import partial
from operator import attrgetter

import pytest
import torch
from torch.nn import functional as F
from typer.testing import CliRunner

from robattr import (
    IG,
    PGD,
    BaselineIG,
    Gradient,
    LinfBall,
    Rho,
    Robust,
    cosine,
    frozen,
    kl,
    l1,
    logits,
    magnitude,
    midpoint,
    objectives,
)  # fmt: skip
from robattr.cli import app
from robattr.cli.train import resolve
from robattr.errors import CheckpointError, InvalidInput
from robattr.formula import Best, Box
from robattr.formula.ascent import Annealed
from robattr.training import custom, train
from robattr.training.config import TrainConfig
from train_fixtures import QUICK, lines, tiny_data, tiny_net, weights

BALL, BY = LinfBall(0.1), PGD(2, 0.05)
MODULE = """
from robattr import LinfBall, PGD, objectives

STRENGTH = 0.5

def make_rho(config, bounds):
    return objectives.ig_norm(STRENGTH * config.weight, LinfBall(config.eps, bounds), PGD(1, 0.02), m=2, m_attack=1)

def needs_more(net): ...

def fails(): return 1 / 0

def forgets(): ...
"""


def noisy(model, x, y) -> Rho:
    """Cross-entropy at x plus torch's own noise."""
    loss = F.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y, reduction="none")
    return Rho(loss, 0 * loss, x)


def go(objective, out, run: TrainConfig = QUICK, **others):
    model = tiny_net()
    outcome = train(run, out, objective=objective, dataset=tiny_data(), model=model, device="cpu", **others)
    return weights(model), outcome


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user's in the current directory, and a function that writes it anew."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str = MODULE) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return f"{name}:make_rho"

    return write


def test_a_given_objective_trains_like_the_method_that_composes_it(tmp_path):
    named = replace(QUICK, method="ig-norm", weight=0.3, eps_ramp=(0, 4), weight_ramp=(0, 3))
    rho = objectives.ig_norm(0.3, BALL, BY, m=3, m_attack=2)
    same, _ = go(rho, tmp_path / "own", replace(named, method="natural", weight=7.0, eps=9.0))
    method, _ = go(None, tmp_path / "method", named)
    assert torch.equal(same, method)
    keys = ("weight", "eps", "ig", "loss", "penalty")
    logs = [[{key: line.get(key) for key in keys} for line in lines(tmp_path / run)] for run in ("own", "method")]
    assert logs[0] == logs[1]
    config = json.loads((tmp_path / "own" / "config.json").read_text())
    assert (config["method"], config["custom"][:7], len(config["custom_source"])) == ("custom", "Robust(", 16)
    assert " at 0x" not in config["custom"]
    assert "own" not in config


@pytest.mark.parametrize(
    "objective",
    [
        noisy,
        objectives.distributional(objectives.spread(2), 0.05, objectives.spread(1), PGD(1, 0.1)),
        objectives.madry(BALL, BY) + objectives.igr(0.5, LinfBall(0.05), BY),
        lambda model, x, y, rand=None: objectives.madry(BALL, BY)(model, x, y, rand=rand),
    ],
    ids=["function", "distributional", "sum", "rand"],
)
def test_a_resumed_run_ends_with_the_same_weights(tmp_path, objective):
    straight, _ = go(objective, tmp_path / "straight")
    go(objective, tmp_path / "broken", replace(QUICK, steps=4))
    resumed, outcome = go(objective, tmp_path / "broken")
    assert outcome.finished
    assert torch.equal(straight, resumed)


def test_ramps_scale_every_term_of_a_sum(tmp_path):
    run = TrainConfig(weight_ramp=(0, 4), eps_ramp=(0, 2)).with_objective(
        objectives.madry(BALL, BY) + objectives.trades(6.0, LinfBall(0.2), BY)
    )
    first, second = run.at(1).objective().terms
    assert (first.weight, first.within.radius, first.by.step_size) == (0.25, 0.05, 0.025)
    assert (second.weight, second.within.radius) == (1.5, 0.1)


def test_a_ramp_of_eps_scales_the_steps_of_every_ascent_and_needs_a_radius():
    ramped = TrainConfig(eps_ramp=(0, 10))
    for by, key in ((Best(PGD(2, 0.05)), "ascent.step_size"), (Annealed(3, 0.2, 0.05), "first")):
        rho = ramped.with_objective(objectives.ig_norm(1.0, LinfBall(0.1), by, m=2)).at(5).objective((0.0, 1.0))
        assert rho.within.radius == pytest.approx(0.05)
        assert attrgetter(key)(rho.by) == pytest.approx(attrgetter(key)(by) / 2)
    with pytest.raises(InvalidInput, match="eps_ramp has no effect on Box"):
        ramped.with_objective(objectives.ig_norm(1.0, Box(0.1, 0.1), PGD(2, 0.05), m=2)).at(5).objective((0.0, 1.0))


def test_another_objective_does_not_continue_a_run(tmp_path):
    rho = objectives.madry(BALL, BY)
    go(rho, tmp_path / "run", replace(QUICK, steps=2))
    with pytest.raises(CheckpointError, match=r"the objective is .*steps=3.*, was .*steps=2.*choose another --out"):
        go(objectives.madry(BALL, PGD(3, 0.05)), tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"method is 'natural', was 'custom'"):
        go(None, tmp_path / "run")
    (tmp_path / "run" / "config.json").unlink()  # the checkpoint knows it as well
    with pytest.raises(CheckpointError, match=r"the hash of its source is '\w{16}', was '\w{16}'"):
        go(noisy, tmp_path / "run")


def scaled(factor):
    def rho(model, x, y):
        return objectives.natural()(model, factor * x, y)

    return rho


class Own:
    """An objective with state."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, model, x, y):
        return objectives.natural()(model, self.factor * x, y)


def test_the_hash_covers_source_closures_defaults_and_state():
    source = custom.source_of
    assert source(scaled(0.5)) == source(scaled(0.5)) != source(scaled(0.6))
    assert source(Own(0.5)) == source(Own(0.5)) != source(Own(0.6))
    assert source(partial(noisy, x=1)) == source(partial(noisy, x=1)) != source(partial(noisy, x=2))
    assert source(noisy) != source(scaled) != source(Own)
    ramp = torch.arange(1e4)
    assert source(Own(ramp)) == source(Own(ramp.clone())) != source(Own(ramp + ramp.eq(5000)))
    spaces = [{}, {}, {}]
    for space, factor in zip(spaces, (2, 2, 3), strict=True):
        exec(f"def rho(model, x, y): return {factor} * x", space)  # has no source text
    assert source(spaces[0]["rho"]) == source(spaces[1]["rho"]) != source(spaces[2]["rho"])


def test_what_is_not_an_objective_is_refused(tmp_path):
    for wrong, message in (
        (objectives.spread(2), r"a Change is one part of it: Robust\(change="),
        (tiny_net(), r"expected objectives.ig_norm\(1.0, .* as objective, got Sequential"),
        ("madry", "as objective, got 'madry'"),
    ):
        with pytest.raises(InvalidInput, match=message):
            go(wrong, tmp_path / "run")
    for out, returned, message in (
        ("tensor", lambda model, x, y: model(x).sum(), "got Tensor: return Rho"),
        ("sum", lambda model, x, y: Rho(model(x).sum(), 0.0, x), r"shape \(8,\), got a value of shape \(\)"),
    ):
        with pytest.raises(InvalidInput, match=message):
            go(returned, tmp_path / out)
    with pytest.raises(InvalidInput, match="eps_ramp have no effect on a function: set both to"):
        go(noisy, tmp_path / "ramp", replace(QUICK, eps_ramp=(0, 5)))


def test_cost_is_counted_in_the_objective():
    run = TrainConfig().with_objective(objectives.ig_norm(1.0, BALL, PGD(7, 0.1), m=5, m_attack=3))
    assert run.second_order == 7 * 3 + 5
    assert TrainConfig().with_objective(noisy).second_order == 0
    blurred = BaselineIG(IG(rule=midpoint(4)), torch.zeros(3, 1, 6, 6))
    compared = Robust(cosine @ (magnitude(Gradient()), frozen(blurred)) + kl @ logits + l1 @ blurred, BALL, PGD(2, 0.1))
    assert TrainConfig().with_objective(compared).second_order == 3 * (1 + 12)
    assert TrainConfig().with_objective(objectives.madry(BALL, BY)).second_order == 0


WORDS = ["--device", "cpu", *(f"--set={w}" for w in ("steps=3", "batch=8", "checkpoint_every=2", "log_every=1"))]


def test_a_factory_of_the_user_s_on_the_command_line(module, tmp_path):
    ref = module("own_rho")
    words = ["train", "fashion-mini/natural", *WORDS, "--out", "run", "--objective"]
    done = CliRunner().invoke(app, [*words, ref, "--set=weight=2", "--set=eps=0.05"])
    assert done.exit_code == 0, done.output
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["recipe"], config["method"], config["custom"]) == ("fashion-mini/make-rho", "custom", ref)
    assert lines(tmp_path / "run")[1]["eps"] == pytest.approx(0.05 / 300)  # the recipe's ramp, at its second step
    assert lines(tmp_path / "run")[1]["weight"] == 1.0  # 0.5 · 2

    changed = module("own_rho2", MODULE.replace("STRENGTH = 0.5", "STRENGTH = 0.4"))
    refused = CliRunner().invoke(app, ["train", *WORDS, "--out", "run", "--objective", changed])
    assert isinstance(refused.exception, CheckpointError)
    assert "the objective is 'own_rho2:make_rho', was 'own_rho:make_rho', the hash of its source is" in str(
        refused.exception
    )

    again = resolve(None, config=None, words=[], objective=ref, found=tmp_path / "run")
    assert again.as_dict() == config


def test_an_objective_of_the_user_s_goes_to_another_process(module):
    """Its factory is imported again there, from the working directory."""
    run = TrainConfig().with_objective(custom.named(module("own_rho"))).at(0)
    again = pickle.loads(pickle.dumps(run))
    assert (again, again.objective()) == (run, run.objective())
    value = "from robattr import *\nrho = objectives.madry(LinfBall(0.1), PGD(1, 0.1))"
    run = TrainConfig(eps_ramp=(0, 10)).with_objective(custom.named(module("own_value", value)[:-8] + "rho")).at(5)
    assert pickle.loads(pickle.dumps(run)).objective() == run.objective() != run.at(6).objective()


def test_a_function_trains_from_the_command_line_without_the_recipe_s_ramps(module):
    ref = module(
        "own_function",
        "from robattr import Rho, cross_entropy\n"
        "def make_rho():\n"
        "    return lambda model, x, y: Rho(cross_entropy(model, x, y), 0 * cross_entropy(model, x, y), x)\n",
    )
    with pytest.raises(InvalidInput, match=r"--set weight_ramp= --set eps_ramp="):
        resolve("fashion-mini/natural", config=None, words=[], objective=ref)
    run = resolve("fashion-mini/natural", config=None, words=["eps_ramp=", "steps=3"], objective=ref)
    assert (run.eps_ramp, run.steps, run.own.name) == ((), 3, "make-rho")


def test_a_name_in_a_file_is_never_imported(module, tmp_path):
    ref = module("hostile", "raise SystemExit('imported')")
    (tmp_path / "run").mkdir()
    config = {**TrainConfig(method="custom", custom=ref).as_dict(), "recipe": "fashion-mini/make-rho"}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    refused = CliRunner().invoke(app, ["train", *WORDS, "--out", "run"])
    assert isinstance(refused.exception, InvalidInput)
    assert "names code, 'hostile:make_rho'" in str(refused.exception)
    assert "--objective hostile:make_rho" in str(refused.exception)


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("own_parts:needs_more", "to need no arguments but `config` and `bounds`, got net"),
        ("own_parts:fails", "'own_parts:fails' failed: ZeroDivisionError"),
        ("own_parts:forgets", "as own_parts:forgets, got None"),
        ("own_parts:STRENGTH", "to be an objective or a function that returns one, got 0.5"),
        ("own_parts", "for example 'my_objectives:make_rho'"),
    ],
)
def test_wrong_factories_are_refused(module, ref, message):
    module("own_parts")
    with pytest.raises(InvalidInput, match=message):
        resolve("fashion-mini/natural", config=None, words=[], objective=ref)


def test_keys_that_do_not_reach_the_objective_are_refused(module):
    ref = module("fixed_rho", "from robattr import objectives\n\ndef make_rho():\n    return objectives.natural()\n")
    for word, message in (
        ("eps=0.2", "eps would have no effect on an objective of your own"),
        ("worst_case=0.5", "worst_case would have no effect on an objective of your own"),
        ("method=madry", "cannot set method: give an objective of your own by --objective"),
        ("custom=x:y", "cannot set custom"),
    ):
        with pytest.raises(InvalidInput, match=message):
            resolve("fashion-mini/natural", config=None, words=[word], objective=ref)
    assert resolve("fashion-mini/natural", config=None, words=["lr=0.1"], objective=ref).lr == 0.1


def test_a_sweep_over_an_objective_of_the_user_s(module, tmp_path):
    pytest.importorskip("optuna")
    words = ["sweep", "fashion-mini/natural", *WORDS, "--examples=0", "--out=sweep", "--over=weight=0.1,0.2"]
    done = CliRunner().invoke(app, [*words, "--objective", module("swept_rho")])
    assert done.exit_code == 0, done.output
    assert "| 0.1 |" in done.output
    logged = [lines(tmp_path / "sweep" / f"weight={w}")[0]["weight"] for w in (0.1, 0.2)]
    assert logged == [0.05, 0.1]
