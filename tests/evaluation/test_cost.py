"""Estimates of an evaluation's time: from counted passes, said before the attack begins."""

from __future__ import annotations

import time
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from robattr._progress import Watching
from robattr.attacks import IFIA, integrated_gradients, per_example_rng
from robattr.evaluation import OutputDir, Protocol, cost, evaluate, scaled, strict
from robattr.evaluation.job import Job
from robattr.evaluation.suite import NOISE_TRIES, attribution_attacks

TINY = replace(scaled("", pixels=64, bounds=(0.0, 1.0)), steps=2, pgd_steps=1, N=3)


class Counted(nn.Module):
    """Counts the rows that it sees."""

    rows = 0

    def __init__(self, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), activation or nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        Counted.rows += len(x)
        return self.net(x)


def examples(n: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.rand(n, 1, 8, 8), torch.arange(n) % 3


def test_the_time_of_a_pass_is_per_example_and_node() -> None:
    """The clock counts rows."""
    Counted.rows = 0
    with patch.object(time, "perf_counter", lambda: float(Counted.rows)):
        assert cost.seconds_per_pass(Counted(), *examples(2)) == 1.0


def test_a_call_that_is_slow_whatever_its_size_does_not_multiply_the_estimate() -> None:
    """Half a second for each call, as on a busy machine: a batch of 32 examples of two nodes divides it."""
    clock = iter(range(10**6))
    with patch.object(time, "perf_counter", lambda: next(clock) / 2):
        assert cost.seconds_per_pass(Counted(), *examples(2)) == 0.5 / (cost.FEW * cost.NODES)


class Timed(Counted):
    """A row takes a second, in bf16 a quarter."""

    seconds = 0.0

    def forward(self, x: Tensor) -> Tensor:
        Timed.seconds += len(x) * (0.25 if torch.is_autocast_enabled("cpu") else 1.0)
        return super().forward(x)


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Softplus()])
@pytest.mark.parametrize(("directions", "leading"), [(None, 1.0), ("bf16", 0.25)])
def test_the_pace_of_an_attack_is_of_its_gradients_and_maps(
    monkeypatch, directions: str | None, leading: float, activation: nn.Module
) -> None:
    """By a clock of forward passes: a map of ten nodes takes eleven with the label, its gradient ten.

    The gradients of a network that is its own twin are screens, too.

    Random numbers of a start, which an attack draws once, would take a week.
    """

    uniform = per_example_rng.uniform

    def slow(*given: object) -> Tensor:
        Timed.seconds += 7 * 24 * 3600
        return uniform(*given)

    attack = IFIA(
        Timed(activation), 0.1, 0.01, 50, k=6, map=integrated_gradients(100), restarts=3, window=10,
        directions=directions,
    )  # fmt: skip
    gradients, screens, scores = attack.costs
    assert (gradients, screens, scores) == (3 * 50 * 40, 3 * 51 * 21, 3 * 5 * 201)
    assert attack.cost == gradients + screens + scores
    monkeypatch.setattr(per_example_rng, "uniform", slow)
    with patch.object(time, "perf_counter", lambda: Timed.seconds):
        found = cost.attack_pace(attack, *examples(2))
    screened = screens / 21 * 11 * isinstance(activation, nn.ReLU)
    taken = leading * (gradients / 40 * 10 + screened) + scores / 21 * 11
    assert found == pytest.approx(cost.SECOND_ORDER * taken / attack.cost)


@pytest.mark.parametrize(("fits", "rows"), [(512, 6), (4, 4)])
def test_an_attack_is_compiled_for_no_more_examples_than_there_are(monkeypatch, fits: int, rows: int) -> None:
    monkeypatch.setattr(Job, "size", fits)
    job = Job(Counted(), integrated_gradients(3), *examples(6), list(range(6)), TINY, compiled=True)
    assert job.compiled_for == rows


class Images:
    """Of a device that need not be there."""

    def __getitem__(self, at: slice) -> Images:
        return self

    def to(self, device: torch.device) -> Images:
        return self

    def __len__(self) -> int:
        return 2000


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("fits", "papers", "stricts"), [(15, 15, 45), (3, 9, 9), (1, 8, 8), (200, 200, 400), (600, 512, 512)]
)
def test_batches_of_strict_on_a_gpu_have_several_groups(monkeypatch, kind, fits, papers, stricts) -> None:
    """What compiled attacks pad is then the last group of a round alone."""
    monkeypatch.setattr("robattr.evaluation.job.rows_that_fit", lambda *_, **__: fits)
    monkeypatch.setattr(Job, "device", torch.device(kind))
    monkeypatch.setattr(Job, "short", False)
    for protocol, size in ((TINY, papers), (strict(TINY), stricts if kind == "cuda" else papers)):
        job = Job(Counted(), integrated_gradients(3), Images(), None, [], protocol)
        assert job.size == papers, "of several processes"
        assert {len(batch) for batch in job.batches[:-1]} == {size}


def test_an_attack_is_compiled_on_a_gpu_where_that_pays(monkeypatch) -> None:
    """The network has four tensors of parameters."""
    x, y = examples(6)
    job = Job(Counted(), integrated_gradients(3), x, y, list(range(6)), TINY)
    assert (job.compiles, replace(job, compiled=True).compiles) == (False, True)
    monkeypatch.setattr(Job, "device", torch.device("cuda"))
    each = job.passes * len(x) / cost.SECOND_ORDER  # seconds where a second-order pass takes one
    compilation = 4 * cost.COMPILATION
    least = cost.PAYS * compilation / cost.SAVED
    for seconds, pays in ((0.99 * least, False), (1.01 * least, True)):
        monkeypatch.setattr(Job, "per_pass", seconds / each)
        timed = replace(job)
        assert timed.compiles is pays
        assert timed.seconds(job.passes * len(x)) == pytest.approx(
            compilation + (1 - cost.SAVED) * seconds if pays else seconds
        )
        assert not replace(job, compiled=False).compiles


def passes(protocol: Protocol, *, rounds: tuple[int, ...]) -> int:
    """Of the attacks of some rounds on one example; the paper's own and its noise are of round 0."""
    attacks = attribution_attacks(protocol, Counted(), integrated_gradients(3), images=True)
    numbers = [0, *(attack.round for attack in protocol.attacks)]
    noise = 0 if protocol.strict else NOISE_TRIES * (2 * 3 + 1)
    return noise + sum(attack.cost for attack, number in zip(attacks, numbers, strict=True) if number in rounds)


def test_the_estimate_counts_the_passes_of_two_rounds() -> None:
    for protocol in (TINY, strict(TINY)):
        attacks = attribution_attacks(protocol, Counted(), integrated_gradients(3), images=True)
        assert cost.attack_passes(protocol, attacks, images=True) == passes(protocol, rounds=(0, 1))
    assert passes(strict(TINY), rounds=(0, 1, 2)) > passes(strict(TINY), rounds=(0,)) > passes(TINY, rounds=(0,))


class Recorded(Watching):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(shown=False)
        self.told: list[tuple[object, ...]] = []

    def expect(self, title: str, seconds: float, what: str) -> None:
        self.told.append((title, seconds, what))

    def __call__(self, title: str, done: int, total: int, unit: str = "examples") -> None:
        self.told.append((title, done, total, unit))


def test_the_estimate_comes_before_the_attack_and_is_of_what_is_left(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("robattr.evaluation.cost.seconds_per_pass", lambda *_: 1.0)
    net, (x, _) = Counted().eval(), examples(6)
    y = net(x).argmax(1)
    each = passes(TINY, rounds=(0,)) / cost.SECOND_ORDER
    for n, left in ((4, 4), (6, 2), (6, 0)):
        watch = Recorded()
        evaluate(
            net, x[:n], y[:n], protocol=TINY, map=integrated_gradients(3), out=OutputDir(tmp_path), watch=watch
        )  # fmt: skip
        assert watch.told[0] == ("paper ig", n - left, n, "examples")
        if left:
            assert watch.told[1:3] == [
                ("paper ig", pytest.approx(left * each), f"{left} examples"),
                ("paper ig", n, n, "examples"),
            ]
            assert {told[0] for told in watch.told[3:]} == {"paper ig, diagnostics"}
        else:
            assert watch.told[1:] == []


@pytest.mark.parametrize("protocol", [TINY, strict(TINY)], ids=["paper", "strict"])
def test_the_diagnostics_count_their_passes(protocol: Protocol) -> None:
    """By rows of a counted network, in the place of seconds: the announced total is the truth, within a fifth."""
    net, (x, _) = Counted().eval(), examples(6)
    y, watch, seen = net(x).argmax(1), Recorded(), []
    monitored = Recorded.__call__

    def watched(self: Recorded, *told: object, **unit: str) -> None:
        monitored(self, *told, **unit)
        seen.append((told[0], told[1], Counted.rows))

    with patch.object(Recorded, "__call__", watched):
        evaluate(net, x, y, protocol=protocol, map=integrated_gradients(3), watch=watch)
    steps = [(done, rows) for title, done, rows in seen if title.endswith("diagnostics")]
    (first, before), *_, (total, after) = steps
    assert first == 0
    assert len(steps) >= 5, "accuracies, cosine, three radii"
    assert total == [told for told in watch.told if told[-1] == "passes"][-1][2]
    # A forward and a backward pass are two; the network counts forward passes, of which half of most are.
    assert 0.3 * total < after - before < 1.2 * total


def test_the_time_of_the_diagnostics_follows_from_the_attack(monkeypatch) -> None:
    """The clock counts rows: what a pass took in the attack decides, not what a timed gradient takes."""
    monkeypatch.setattr("robattr.evaluation.cost.seconds_per_pass", lambda *_: 1e6)
    monkeypatch.setattr("robattr.evaluation.job.time.perf_counter", lambda: float(Counted.rows))
    net, (x, _) = Counted().eval(), examples(6)
    watch, rows = Recorded(), []
    monkeypatch.setattr(
        "robattr.evaluation.run.expect",
        lambda *told: (rows.append(Counted.rows), watch.expect(told[1], told[2](), told[3])),
    )
    longer = replace(TINY, steps=30, pgd_steps=20)  # else the insertion curves take most of the time
    evaluate(net, x, net(x).argmax(1), protocol=longer, map=integrated_gradients(3), watch=watch)
    (seconds,) = [told[1] for told in watch.told if told[0] == "paper ig, diagnostics" and isinstance(told[1], float)]
    truth = Counted.rows - rows[0]
    assert truth / 2 < seconds < 2 * truth
