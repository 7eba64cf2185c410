"""The schedule of the strict protocol: order, budget, early stop, what is recorded of each attack."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from evaluation_fixtures import IG, TOY
from robattr.attacks import IFIA, integrated_gradients, simple_gradient
from robattr.attacks.walk import Walk
from robattr.evaluation import paper, strict
from robattr.evaluation.evaluate_batch import evaluate_batch
from robattr.evaluation.paper_results import PaperResults
from robattr.evaluation.protocol import ROUNDS, exhaustive
from robattr.evaluation.suite import attribution_attacks, noise_control, prediction_attacks
from robattr.evaluation.worst_case import worst_case
from robattr.models import resnet

LONGER = replace(TOY, steps=8)
RICH = replace(strict(LONGER), budget=9.0, tolerance=0.0)  # so that examples leave one by one


def found(case, protocol, at=slice(None)):
    net, x, y = case
    right = net(x).argmax(dim=1) == y
    x, y, ids = x[right][at], y[right][at], right.nonzero()[:, 0][at].tolist()
    attacks = attribution_attacks(protocol, net, IG, images=True)
    return worst_case(attacks, x, y, IG(net, x, y).detach(), ids=ids, protocol=protocol)


@pytest.fixture(scope="module")
def whole(case):
    return found(case, RICH)


def test_each_example_on_its_own_gives_the_same(case, whole) -> None:
    """Examples leave the batch at different times; none may notice. Tolerance: kernels round by batch size."""
    assert len(set(whole.passes.tolist())) > 1
    for b in (0, 5):
        alone = found(case, RICH, slice(b, b + 1))
        assert alone.passes.tolist() == whole.passes[b : b + 1].tolist()
        assert alone.attack.tolist() == whole.attack[b : b + 1].tolist()
        for name in ("kendall", "topk"):
            torch.testing.assert_close(alone.worst[name], whole.worst[name][b : b + 1], rtol=0, atol=1e-6)


def test_the_worst_case_is_the_lowest_of_the_attacks(whole) -> None:
    result = whole
    for score in ("topk", "kendall"):
        each = torch.stack([values[score].nan_to_num(1.0) for values in result.each.values()])
        torch.testing.assert_close(each.amin(dim=0), result.worst[score])
    names = ["paper", *(attack.name for attack in strict(LONGER).attacks)]
    torch.testing.assert_close(result.noise["kendall"], result.each["random"]["kendall"])
    for b, number in enumerate(result.attack.tolist()):
        assert result.each[names[number]]["kendall"][b] == result.worst["kendall"][b]


def test_no_example_costs_more_than_the_budget(case, whole) -> None:
    net = case[0]
    thrifty = strict(replace(LONGER, repeats=1))
    for protocol, result in ((RICH, whole), (thrifty, found(case, thrifty, slice(0, 3)))):
        control = noise_control(attribution_attacks(protocol, net, IG, images=True)[0])
        first = attribution_attacks(protocol, net, IG, images=True)[0]
        papers = first.cost + prediction_attacks(protocol, net)[0].cost + control.cost
        assert (result.passes <= protocol.budget * papers).all()
        assert (result.passes > papers).all()


@pytest.mark.parametrize("dataset", ["mnist", "fashion-mnist", "gtsrb", "flower"])
def test_two_rounds_fit_the_budget(dataset: str) -> None:
    """With a map of one pass, as on GTSRB and Flower, the least is left for the other attacks."""
    net, p = torch.nn.Flatten(), strict(dataset)
    attacks = attribution_attacks(p, net, simple_gradient(), images=True)
    predictions = prediction_attacks(p, net)
    papers = attacks[0].cost + predictions[0].cost + noise_control(attacks[0]).cost
    rounds = [a.cost for a, s in zip(attacks[1:], p.attacks, strict=True) if s.round < 2]
    assert attacks[0].cost + sum(a.cost for a in predictions) + sum(rounds) <= 3 * papers, (papers, rounds)
    assert paper(dataset).budget > 3


def test_strict_takes_what_paper_has_found(case, monkeypatch) -> None:
    """The records are those of two evaluations on their own, and the attack of `paper` and the noise run once."""
    net, x, y = case
    ids, ran = list(range(len(x))), []
    settings = {"map": IG, "ids": ids, "first": 2}
    protocols = LONGER, strict(LONGER)
    alone = [evaluate_batch(net, x, y, protocol=p, **settings) for p in protocols]
    monkeypatch.setattr(IFIA, "iterates", lambda self, rows: ran.append(self.kind) or Walk(self, rows).iterates())
    shared = PaperResults()
    together = [evaluate_batch(net, x, y, protocol=p, shared=shared, **settings) for p in protocols]
    assert (ran.count("topk"), ran.count("random")) == (1, 1)
    assert ran.count("rank") > 0
    assert [batch.records for batch in together] == [batch.records for batch in alone]
    assert [batch.gallery.file for batch in together] == [batch.gallery.file for batch in alone]
    assert len(shared) == 0


def test_results_that_need_too_much_memory_are_not_kept(case) -> None:
    net, x, y = case
    attack = attribution_attacks(LONGER, net, IG, images=True)[0]
    result, noise = attack(x[:2], y[:2]), noise_control(attack)(x[:2], y[:2])
    room = result.bytes + noise.bytes
    kept, full = PaperResults(room=room), PaperResults(room=room - 1)
    for each in (kept, full):
        each.keep([0, 1], result, noise)
    assert (len(kept), len(full)) == (1, 0)
    assert kept.take([1, 0], x.device) is None
    for found, given in zip(kept.take([0, 1], x.device), (result, noise), strict=True):
        torch.testing.assert_close(found.map, given.map)


def test_converged_examples_leave(case) -> None:
    """With a tolerance no score can fall by, the second round is the last; with a negative one all rounds run."""
    few = slice(0, 2)
    never = found(case, replace(strict(LONGER), tolerance=2.0, budget=1e9), few)
    assert never.converged.all()
    assert [name[-2:] for name in never.each if "#" in name] == ["#2", "#2"]
    always = found(case, replace(strict(LONGER), tolerance=-1.0, budget=1e9), few)
    assert sum("#" in name for name in always.each) == 2 * (ROUNDS - 1)
    assert not always.converged.any()
    poor = found(case, replace(strict(LONGER), budget=1.0), few)
    assert list(poor.each) == ["paper"]
    assert not poor.converged.any()


def test_a_record_names_the_attacks_that_ran_on_its_example(case) -> None:
    """Not those that ran only on others of its batch."""
    few, protocol = slice(0, 4), replace(strict(replace(TOY, steps=2)), budget=1e9)
    fell = sorted(found(case, replace(protocol, tolerance=2.0), few).falling.tolist())
    protocol = replace(protocol, tolerance=(fell[0] + fell[-1]) / 2)  # some go on, others do not
    together = found(case, protocol, few)
    named = [list(together.about(b)["attacks"]) for b in range(4)]
    assert named == [list(found(case, protocol, slice(b, b + 1)).about(0)["attacks"]) for b in range(4)]
    assert min(map(len, named)) < max(map(len, named)) == len(together.each)


def test_the_exhaustive_protocol_runs_every_attack_on_every_example(case) -> None:
    protocol = exhaustive(replace(TOY, steps=2, repeats=1))
    result = found(case, protocol, slice(0, 2))
    assert list(result.each)[1:] == [attack.name for attack in protocol.attacks]
    alone = found(case, strict(replace(TOY, steps=2, repeats=1)), slice(0, 2))
    assert (result.worst["kendall"] <= alone.worst["kendall"] + 1e-9).all()


def test_a_record_says_what_each_attack_found_and_cost(case) -> None:
    net, x, y = case
    p = strict(replace(TOY, repeats=1))
    records = evaluate_batch(net, x[:3], y[:3], ids=range(3), protocol=p, map=IG).records
    assert "attacks" not in records[2], "misclassified"
    for record in records[:2]:
        known = [value for value in record["attacks"].values() if value[0] is not None]
        assert min(topk for topk, _ in known) == pytest.approx(record["topk"], abs=1e-4)
        assert min(tau for _, tau in known) == pytest.approx(record["kendall"], abs=1e-4)
        assert record["passes"] > 0
    plain = evaluate_batch(net, x[:1], y[:1], ids=[0], protocol=TOY, map=IG).records[0]
    assert "attacks" not in plain


def test_flat_inputs_have_no_attack_on_the_mass_centre() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    x = torch.rand(2, 12)
    p = strict(replace(TOY, k=3, eval_k=3, repeats=1))
    record = evaluate_batch(net, x, net(x).argmax(dim=1), ids=range(2), protocol=p, map=simple_gradient()).records[0]
    assert not any(name.startswith("mass_center") for name in record["attacks"])


def test_attacks_of_other_seeds_start_elsewhere() -> None:
    one, two = (
        attribution_attacks(replace(strict(TOY), seed=seed), torch.nn.Flatten(), IG, images=True)[1:] for seed in (0, 1)
    )
    assert not {(a.kind, a.seed) for a in one if a.kind != "random"} & {(a.kind, a.seed) for a in two}


def test_an_attack_looks_for_iterates_by_its_own_score() -> None:
    attacks = attribution_attacks(strict(TOY), torch.nn.Flatten(), IG, images=True)
    aims = {a.kind: a.aim for a in attacks}
    assert {kind: aims[kind] for kind in ("soft_topk", "rank", "mass_center", "cosine")} == {
        "soft_topk": "topk", "rank": "kendall", "mass_center": "mass_center", "cosine": "cosine",
    }  # fmt: skip


def test_noise_of_every_example_where_the_budget_admits_it_for_some() -> None:
    """With the shortcut an example costs less, and its budget is smaller: the prediction attacks take most of it."""
    torch.manual_seed(0)
    net, map = resnet(4, 1, channels=1).eval(), integrated_gradients(20)
    x = 255 * torch.rand(3, 1, 8, 8)
    x[1] = 100 + 0.05 * x[1]
    y = net(x).argmax(dim=1)
    p = strict(replace(TOY, steps=2, pgd_steps=60, eps=8.0, alpha=1.0, bounds=(0.0, 255.0), N=20, repeats=1))
    attacks = attribution_attacks(p, net, map, images=True)
    case = worst_case(attacks, x, y, map(net, x, y).detach(), ids=[0, 1, 2], protocol=p)
    assert case.ran["random"].tolist() == [False, True, False]
    assert case.noise["kendall"].isfinite().all()
    control = noise_control(attacks[0])(x, y, ids=[0, 1, 2])
    torch.testing.assert_close(case.noise["kendall"], control.score, rtol=0, atol=1e-4)


def least_overlap(lowest: torch.Tensor, highest: torch.Tensor, clean: torch.Tensor, k: int) -> float:
    """The least share of the top k that is left where each pixel's attribution may be anything in its own interval.

    j pixels can change places if the j lowest that top pixels reach are below the j highest that others reach.
    """
    top = torch.zeros(len(clean), dtype=torch.bool)
    top[clean.topk(k).indices] = True
    down, up = lowest[top].sort().values, highest[~top].sort(descending=True).values[:k]
    return 1 - float((down[: len(up)] < up).sum()) / k


def test_strict_comes_close_to_the_worst_case_where_that_is_known() -> None:
    """f(x) = Wx: IG is w_p·x_p, each pixel in an interval of its own, so the worst case has a closed form.

    No attack may be below it, unless the measurement is wrong; strict comes within a pixel of the twelve, on average.
    """
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    x = torch.rand(12, 1, 8, 8)
    y = net(x).argmax(dim=1)
    protocol = strict(replace(paper("fashion-mnist"), eps=0.05, steps=40, alpha=0.01, repeats=1, k=12, eval_k=12, N=4))
    map = integrated_gradients(protocol.N)
    attacks = attribution_attacks(protocol, net, map, images=True)
    result = worst_case(attacks, x, y, map(net, x, y).detach(), ids=range(12), protocol=protocol)
    w, pixels = net[1].weight[y].detach().abs(), x.flatten(1)
    lowest, highest = w * (pixels - 0.05).clamp_min(0), w * (pixels + 0.05).clamp_max(1)
    bound = [least_overlap(*of, 12) for of in zip(lowest, highest, w * pixels, strict=True)]
    reached = result.worst["topk"].double()
    assert (reached >= torch.tensor(bound).double() - 1e-6).all()
    assert float(reached.mean()) <= sum(bound) / len(bound) + 1 / 12
