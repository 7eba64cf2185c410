"""Settings from outside are typed, and what is not understood is refused with the nearest name."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from robattr.errors import InvalidInput
from robattr.training import settings
from robattr.training.config import TrainConfig
from robattr.training.methods import Method


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("weight=0.1", "weight", 0.1),
        ("weight=1", "weight", 1.0),
        ("eps=8/255", "eps", 8 / 255),
        ("steps=1e5", "steps", 100_000),
        ("steps=70_000", "steps", 70_000),
        ("rates=1e-3,1e-2,1e-3", "rates", (1e-3, 1e-2, 1e-3)),
        ("weight_ramp=0,100", "weight_ramp", (0, 100)),
        ("weight-ramp=none", "weight_ramp", ()),
        ("eps_ramp=[]", "eps_ramp", ()),
        ("chunk=5", "chunk", 5),
        ("chunk=none", "chunk", None),
        ("clip=1", "clip", 1.0),
        ("tensorboard=true", "tensorboard", True),
        ("full=no", "full", False),
        ("method=ig-sum-norm", "method", "ig-sum-norm"),
        ("model=my_nets:make", "model", "my_nets:make"),
        ("warm_start=a=b", "warm_start", "a=b"),
    ],
)
def test_words_are_typed_by_their_field(word, key, value):
    assert settings.parse_word(word) == (key, value)
    assert type(settings.parse_word(word)[1]) is type(value)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("wieght=1", "did you mean 'weight'"),
        ("steps", "expected key=value, got 'steps'; write steps=VALUE"),
        ("learning_rate=1", "unknown key"),
        ("steps=many", "steps must be a whole number, got 'many'"),
        ("steps=1.5", "steps must be a whole number, got 1.5"),
        ("steps=0", "steps must be at least 1"),
        ("lr=fast", "lr must be a number"),
        ("lr=nan", "lr must be a number"),
        ("lr=-1", "lr must be positive"),
        ("eps=1/0", "eps must be a number"),
        ("tensorboard=perhaps", "tensorboard must be true or false"),
        ("method=ig_norm", "did you mean 'ig-norm'"),
        ("rule=mid-point", "did you mean 'midpoint'"),
        ("rates=1,x", "rates must be a number"),
        ("schedule=piecewise", "one more rate than boundaries"),
        ("weight_ramp=5", "two increasing steps"),
        ("weight_ramp=9,3", "two increasing steps"),
        ("keep=1", "keep must be at least 2"),
        ("momentum=5", r"momentum must be in \[0, 1\)"),
        ("rates=0.1,-1", "rates must be positive"),
        ("recipe=mnist/madry", "robattr train mnist/madry"),
    ],
)
def test_words_that_mean_nothing_are_refused(word, message):
    with pytest.raises(InvalidInput, match=message):
        settings.change_by_words(TrainConfig(), [word])


def test_a_rate_that_would_be_ignored_is_refused():
    run = TrainConfig(schedule="piecewise", rates=(1.0,))
    with pytest.raises(InvalidInput, match="lr has no effect on a piecewise schedule"):
        settings.change_by_words(run, ["lr=0.1"])
    with pytest.raises(InvalidInput, match="lr has no effect on a piecewise schedule"):
        settings.change(run, {"lr": 0.1})  # as a file or a sweep says it
    assert settings.change_by_words(run, ["lr=0.1", "schedule=constant"]).rate(0) == 0.1
    for word in ("rates=1e-3", "boundaries=5", "warmup=10"):
        with pytest.raises(InvalidInput, match="has no effect with schedule=constant: set schedule="):
            settings.change_by_words(TrainConfig(), [word])
    assert settings.change_by_words(TrainConfig(), ["rates=1e-3", "schedule=piecewise"]).rate(0) == 1e-3
    assert settings.change_by_words(run, ["rates=none", "boundaries=none", "schedule=constant"]).rates == ()


@pytest.mark.parametrize("method", get_args(Method))
def test_a_weight_that_no_method_heeds_is_refused(method):
    """Whether a method heeds λ is asked of its objective; a file says every key, and is read all the same."""
    one, two = (TrainConfig(method=method, budget=1.0, weight=weight) for weight in (1.0, 2.0))
    numbers = [(rho.weight, [c for c, _ in rho.change.terms]) for rho in (one.objective(), two.objective())]
    assert settings.change(one, two.as_dict()) == two
    if numbers[0] != numbers[1]:
        assert settings.change_by_words(one, ["weight=2"]) == two
    else:
        with pytest.raises(InvalidInput, match=f"weight has no effect with method={method}: set method=ig-norm"):
            settings.change_by_words(one, ["weight=2"])


def test_what_a_shortened_run_never_reaches_is_said():
    run = TrainConfig(
        method="ig-norm", eps_ramp=(0, 300), weight_ramp=(0, 200), schedule="linear", warmup=150, steps=300
    )
    assert run.unreached() == []
    short = settings.change_by_words(run, ["steps=100"])
    assert [line.split()[0] for line in short.unreached()] == ["weight", "eps", "lr"]
    assert short.at(99).eps == pytest.approx(0.3 * 99 / 300)
    assert "eps stays below 0.3: eps_ramp ends at step 300, the run at 100" in short.unreached()
    assert len(settings.change_by_words(short, ["method=natural"]).unreached()) == 1  # it heeds neither λ nor ε


@pytest.mark.parametrize(
    ("key", "word", "remedy"),
    [
        ("method", "ig_norm", "did you mean 'ig-norm'"),
        ("optimizer", "sgd", "valid: adam, momentum"),  # was Adam
        ("norm", "inf", "did you mean 'linf'"),  # was the ℓ₂ ball
        ("reduction", "average", "valid: mean, sum"),  # was the sum
        ("schedule", "onecycle", "did you mean 'one-cycle'"),
        ("precision", "fp16", "did you mean"),
    ],
)
def test_a_run_made_in_python_is_held_to_its_words_as_well(key, word, remedy):
    with pytest.raises(InvalidInput, match=f"{key} cannot be '{word}'; {remedy}"):
        TrainConfig(**{key: word})


def test_a_seed_that_torch_cannot_take_is_refused():
    assert TrainConfig(seed=2**63 - 1).seed == 2**63 - 1
    with pytest.raises(InvalidInput, match=r"seed must be below .*, got 99999999999999999999$"):
        settings.change_by_words(TrainConfig(), ["seed=99999999999999999999"])


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("steps=1e18", "steps must be at most 999,999,999"),
        ("m=1e15", "m must be at most 10,000"),
        ("attack_steps=1e12", "attack_steps must be at most"),
        ("decay=1e308", r"decay must be a number of at most 3\.4e\+38, got '1e308'"),
        ("lr=1e39", r"lr must be a number of at most 3\.4e\+38"),
    ],
)
def test_absurd_numbers_are_refused(word, says):
    with pytest.raises(InvalidInput, match=says):
        settings.change_by_words(TrainConfig(), [word])
    key, _, value = word.partition("=")
    number = float(value) if key in ("decay", "lr") else int(float(value))
    with pytest.raises(InvalidInput, match=f"{key} must be"):
        TrainConfig(**{key: number})


def test_a_large_seed_is_read_exactly():
    assert settings.parse_word(f"seed={2**53 + 1}") == ("seed", 2**53 + 1)


def test_files_are_typed_strictly(tmp_path):
    good = tmp_path / "run.toml"
    good.write_text('recipe = "mnist/ig-norm"\nweight = 1\nrates = [1e-3, 1]\n')
    run = settings.change(TrainConfig(), settings.read_file(good))
    assert (run.recipe, run.weight, run.rates) == ("mnist/ig-norm", 1.0, (1e-3, 1.0))
    for text, message in (
        ('steps = "100"', "steps must be a whole number, got '100'"),
        ("steps = true", "steps must be a whole number, got True"),
        ("stpes = 1", "did you mean 'steps'"),
        ("steps = ", "expected a TOML file"),
        ("[train]\nlr = 1.0", "unknown key 'train'"),
    ):
        bad = tmp_path / "bad.toml"
        bad.write_text(text)
        with pytest.raises(InvalidInput, match=message):
            settings.change(TrainConfig(), settings.read_file(bad))
    with pytest.raises(InvalidInput, match=r"expected a TOML file.*No such file"):
        settings.read_file(tmp_path / "none.toml")


def test_a_run_survives_json_and_toml(tmp_path):
    run = TrainConfig(
        method="ig-norm", rates=(1e-3, 2.0), boundaries=(7,), schedule="piecewise", clip=1.5, warm_start='a"b\\c'
    )
    (tmp_path / "config.json").write_text(json.dumps(run.as_dict()))
    (tmp_path / "run.toml").write_text(settings.to_toml(run))
    assert settings.change(TrainConfig(), settings.read_file(tmp_path / "config.json")) == run
    assert settings.change(TrainConfig(), settings.read_file(tmp_path / "run.toml")) == run


def test_only_what_decides_the_weights_is_decisive():
    run = TrainConfig(schedule="constant")
    assert run.decisive() == settings.change_by_words(run, ["steps=9", "log_every=3", "keep=5"]).decisive()
    assert run.decisive() != settings.change_by_words(run, ["m=9"]).decisive()
    cosine = TrainConfig(schedule="cosine")
    assert cosine.decisive() != settings.change_by_words(cosine, ["steps=9"]).decisive()
