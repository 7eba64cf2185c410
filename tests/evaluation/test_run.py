"""Whole evaluations: what they record, refuse, resume and warn of."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.ndimage import center_of_mass
from torch import Tensor, nn
from torch.nn import functional as F

from robattr.attacks import from_callable, gradient_input, integrated_gradients, simple_gradient
from robattr.attacks.ifia import IFIA
from robattr.errors import CheckpointError, InvalidInput
from robattr.evaluation import OutputDir, Protocol, compare, evaluate, strict
from robattr.evaluation.diagnostics import completeness_gap, random_search, score_against_eps
from robattr.evaluation.gallery import choose, walk
from robattr.evaluation.protocol_attacks import attribution_attacks
from robattr.evaluation.run import BLOCK, _Job, discard
from robattr.models import resnet
from robattr.reporting.gallery import read_gallery

TOY = Protocol("paper", "toy", 0.15, 0.05, 4, 6, 6, 0.05, 4, (0.0, 1.0), N=4, repeats=2)
IG = integrated_gradients(4)


def toy_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 16), nn.ReLU(), nn.Linear(16, 3)
    )


@pytest.fixture(scope="module")
def case() -> tuple[nn.Module, Tensor, Tensor]:
    net = toy_net()
    x = torch.rand(12, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    x[:, :, 0] = 0
    y = net(x).argmax(dim=1)
    y[[2, 7]] = (y[[2, 7]] + 1) % 3  # two examples it gets wrong
    return net, x, y


def test_one_pass_instead_of_many_makes_larger_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for 300 rows: 100 examples of three repeats at one pass each, the fewest there are at a hundred."""
    monkeypatch.setattr("robattr.evaluation.run.rows_that_fit", lambda model, x, passes: 300 // passes)
    protocol = replace(TOY, eps=8.0, bounds=(0.0, 255.0), N=100, repeats=3)
    x = 255 * torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    flat = torch.full_like(x, 100.0)
    sizes = [
        _Job(
            resnet(3, 1, channels=1),
            images,
            torch.zeros(12).long(),
            list(range(12)),
            protocol,
            map,
            None,
            False,
        ).size
        for images in (x, flat)
        for map in (integrated_gradients(100), simple_gradient())
    ]
    assert sizes == [100, 100, BLOCK[0], 100]


@pytest.fixture(scope="module")
def plain(case):
    return evaluate(*case, protocol=TOY, map=IG)


def test_columns_are_means_of_the_records(plain) -> None:
    records, summary = plain.records, plain.summary
    assert [r["id"] for r in records] == list(range(12))
    wrong = [r for r in records if not r["correct"]]
    assert [r["id"] for r in wrong] == [2, 7]
    assert all(r["kendall"] is None and r["topk"] is None and r["kept"] is None for r in wrong)
    right = [r for r in records if r["correct"]]
    for name in ("topk", "kendall", "spearman", "cosine", "ssim", "mass_center", "ceiling", "foreground_kendall"):
        column = summary["columns"][name]
        assert column["value"] == pytest.approx(np.mean([r[name] for r in right]))
        assert column["low"] <= column["value"] <= column["high"]
        assert column["n"] == 10
    assert summary["columns"]["nat_acc"]["value"] == pytest.approx(10 / 12)
    assert summary["columns"]["adv_acc"]["value"] == pytest.approx(np.mean([r["adv_correct"] for r in records]))
    assert summary["never_kept"] == np.mean([not r["kept"] for r in right])
    assert 0 < summary["columns"]["kendall"]["value"] < 1
    assert all(r["kendall"] <= r["ceiling"] or r["iterate"] == 0 or r["ceiling"] == 1 for r in right)


def test_inputs_that_are_no_images(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 3))
    x = torch.rand(6, 20)
    found = evaluate(net, x, net(x).argmax(dim=1), protocol=TOY, map=IG, place=OutputDir(tmp_path)).summary
    assert found["columns"]["kendall"]["n"] == 6
    assert found["columns"]["ssim"]["value"] is None
    assert not list(tmp_path.glob("*.npz"))


def test_the_model_is_left_as_it_was() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(48, 3))
    x = torch.rand(6, 1, 6, 6)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    y = net.eval()(x).argmax(dim=1)
    net.train()
    evaluate(net, x, y, protocol=TOY, map=IG)
    assert all(module.training for module in net.modules())
    assert all(p.requires_grad and p.grad is None for p in net.parameters())
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_curves_fall(plain) -> None:
    curves = plain.summary["curves"]
    for curve, axis in (("score_vs_iterations", "iterations"), ("score_vs_eps", "eps")):
        assert curves[curve][axis] == sorted(curves[curve][axis])
        for name in ("topk", "kendall"):
            assert curves[curve][name] == sorted(curves[curve][name], reverse=True)
            assert len(curves[curve][name]) == len(curves[curve][axis])
    assert curves["score_vs_eps"]["eps"][0] == 0
    assert curves["score_vs_eps"]["eps"][-1] <= 1


def test_the_curve_over_eps_reaches_a_black_background() -> None:
    """From x itself it would not: |x_i·g_i| has no slope where x_i = 0."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).double()
    x = torch.rand(4, 1, 8, 8, dtype=torch.float64)
    x[:, :, 3:] = 0
    y = net(x).argmax(dim=1)
    attack = IFIA(net, 0.3, 0.03, 20, k=10, map=IG)
    from_x = attack(x, y)
    assert (from_x.perturbed[:, :, 3:] == 0).all()
    curve = score_against_eps(attack, x, y, ids=range(4))
    assert curve["eps"][2] == 0.3
    assert curve["kendall"][2] < from_x.score.mean() - 0.2


@pytest.mark.parametrize("map", [IG, simple_gradient()], ids=lambda m: m.name)
def test_strict_never_calls_a_model_more_robust(case, map) -> None:
    easy, hard = (evaluate(*case, protocol=p, map=map) for p in (TOY, strict(TOY)))
    lower = 0
    for a, b in zip(easy.records, hard.records, strict=True):
        assert b["adv_correct"] <= a["adv_correct"]
        if not b["correct"]:
            continue
        assert b["kept"] >= a["kept"]
        for name in ("topk", "kendall", "spearman", "cosine", "ssim"):
            assert b[name] is None or b[name] <= a[name]
        assert b["mass_center"] is None or b["mass_center"] >= a["mass_center"]
        lower += b["kendall"] is not None and b["kendall"] < a["kendall"]
    assert lower > 0, "strict must find more than paper on some example"
    for name in ("adv_acc", "topk", "kendall", "spearman", "cosine", "ssim"):
        assert hard.summary["columns"][name]["value"] <= easy.summary["columns"][name]["value"]


class Brittle(nn.Module):
    """Any step away from ½ flips the label; the second class is never predicted at ½ itself."""

    def forward(self, x: Tensor) -> Tensor:
        own = (x.flatten(1) ** 2).sum(dim=1)
        return torch.stack([own, own + 50 * ((x - 0.5).flatten(1) ** 2).sum(dim=1) - 1e-6], dim=1)


def test_failures_count_as_one_in_paper_and_apart_in_strict() -> None:
    x, y = torch.full((3, 1, 6, 6), 0.5), torch.zeros(3, dtype=torch.long)
    x[:, :, 0, 0] = 0.50001  # so that the map has an order
    easy, hard = (evaluate(Brittle(), x, y, protocol=p, map=simple_gradient()) for p in (TOY, strict(TOY)))
    assert easy.summary["never_kept"] == hard.summary["never_kept"] == 1
    assert easy.summary["columns"]["topk"]["value"] == 1
    assert hard.summary["columns"]["topk"] == {"value": None, "low": None, "high": None, "n": 0, "excluded": 3}


class Rounded(nn.Module):
    """A defence that only hides gradients: the input is rounded, so that every derivative is zero."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x * 8).round() / 8)


class Saturated(nn.Module):
    """A defence that only hides the loss: logits so large that the softmax has no gradient in float32."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return 1e5 * self.net(x)


def test_hidden_gradients_raise_alarms(case) -> None:
    net, x, _ = case
    wide = replace(TOY, eps=0.3, alpha=0.1, pgd_alpha=0.1)
    rounded = Rounded(net)
    found = evaluate(rounded, x, rounded(x).argmax(dim=1), protocol=wide, map=IG).summary
    assert found["excluded"] == 12, "a map that is zero everywhere is counted, not scored"
    assert found["columns"]["kendall"]["n"] == 0
    assert any("constant or non-finite maps" in alarm for alarm in found["alarms"])
    assert any("without gradients" in alarm or "whole pixel range" in alarm for alarm in found["alarms"])
    saturated = Saturated(net)
    found = evaluate(saturated, x, saturated(x).argmax(dim=1), protocol=wide, map=IG).summary
    assert found["diagnostics"]["vanishing_loss"] > 0.5
    assert any("exactly zero" in alarm for alarm in found["alarms"])
    assert any("PGD on the margin" in alarm for alarm in found["alarms"])


def test_an_honest_net_raises_no_alarm(case) -> None:
    torch.manual_seed(4)
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.Tanh(), nn.Linear(24, 3))
    with torch.no_grad():
        net[1].weight.mul_(3)
    _, x, _ = case
    longer = replace(TOY, eps=0.1, alpha=0.02, steps=15, pgd_alpha=0.02, pgd_steps=20)
    found = evaluate(net, x, net(x).argmax(dim=1), protocol=longer, map=simple_gradient()).summary
    assert found["alarms"] == []


def test_random_search_needs_no_gradient(case) -> None:
    net, x, _ = case
    rounded = Rounded(net)
    y = rounded(x).argmax(dim=1)
    found = random_search(rounded, x, y, eps=0.3, bounds=(0.0, 1.0), ids=range(12))
    assert (found - x).abs().max() <= 0.3 + 1e-6
    assert found.min() >= 0
    assert (rounded(found).argmax(dim=1) != y).any()


def test_completeness_gap_shrinks_with_more_points(case) -> None:
    net, x, y = case
    coarse, fine = (completeness_gap(integrated_gradients(n), net, x, y).median() for n in (2, 64))
    assert fine < 0.1 * coarse or fine < 1e-3


class Whitened(nn.Module):
    """Takes the mean and the spread of the batch, in eval mode too."""

    def forward(self, z: Tensor) -> Tensor:
        return (z - z.mean()) / z.std()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda net, x, y: (nn.Sequential(net, nn.Softmax(dim=1)), x, y, TOY), "drop the softmax"),
        (lambda net, x, y: (net, 255 * x, y, TOY), r"expected inputs within the bounds \(0, 1\), got"),
        (lambda net, x, y: (net, x, y, replace(TOY, k=37)), "between 1 and the 36 pixels"),
        (lambda net, x, y: (net, x, y, replace(TOY, eval_k=0)), "between 1 and the 36 pixels"),
        (lambda net, x, y: (net, x, (net(x).argmax(dim=1) + 1) % 3, TOY), "none of the 12 examples"),
        (lambda net, x, y: (nn.Sequential(net, Noisy()), x, y, TOY), "two calls in eval mode return different logits"),
        (lambda net, x, y: (nn.Sequential(Whitened(), net), x, y, TOY), "with the other examples in its batch"),
        (lambda net, x, y: (net, x.where(x > 0, torch.nan), y, TOY), "NaN"),
    ],
)
def test_bad_input_is_refused(case, spoil, says: str) -> None:
    net, x, y, protocol = spoil(*case)
    with pytest.raises(InvalidInput, match=says):
        evaluate(net, x, y, protocol=protocol, map=IG)


class Noisy(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return z + torch.randn_like(z)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"model": lambda z: z}, "model to be a Module, got function"),
        ({"y": [0, 1]}, r"y to be a Tensor, got list: use torch\.as_tensor"),
        ({"protocol": "paper"}, "protocol to be a Protocol, got str"),
        ({"map": "ig"}, "map to be a Saliency, got str"),
        ({"source": nn.Sequential(nn.Flatten(), nn.Linear(36, 2))}, "same 3 classes, got one of 2"),
        ({"source": nn.Sequential(nn.Flatten(), nn.Linear(35, 3))}, r"same examples, \(1, 6, 6\), got one that fails"),
    ],
)
def test_values_of_other_kinds_are_refused(case, wrong, says: str) -> None:
    given = {**dict(zip(("model", "x", "y"), case, strict=True)), "protocol": TOY, "map": IG, **wrong}
    with pytest.raises(InvalidInput, match=says):
        evaluate(**given)


def test_settings_tell_the_points_of_the_map_that_was_used(case) -> None:
    net, x, y = case
    assert evaluate(net, x[:4], y[:4].byte(), protocol=TOY, map=integrated_gradients(3)).summary["settings"]["N"] == 3
    assert evaluate(net, x[:4], y[:4], protocol=TOY, map=simple_gradient()).summary["settings"]["N"] == TOY.N


def test_constant_maps_are_counted_and_explained(case) -> None:
    class PartlyFlat(nn.Module):
        """Images that are dark on average get constant logits."""

        def forward(self, x: Tensor) -> Tensor:
            bright = (x.flatten(1).mean(dim=1) > 0.4).float()[:, None]
            out = F.pad(x.flatten(1).square().sum(dim=1, keepdim=True), (0, 1)) * bright
            return out + torch.tensor([1.0, 0.0])

    _, x, _ = case
    x = x.clone()
    x[:3] *= 0.3
    found = evaluate(PartlyFlat(), x, torch.zeros(12, dtype=torch.long), protocol=TOY, map=simple_gradient())
    assert found.summary["excluded"] == sum(r["excluded"] is not None for r in found.records) >= 3
    assert all("constant or not finite" in r["excluded"] for r in found.records[:3])
    assert found.summary["columns"]["kendall"]["n"] == 12 - found.summary["excluded"]


def test_galleries_of_different_models_share_their_first_examples() -> None:
    def of(kendalls: list[float]) -> list[dict[str, object]]:
        return [{"id": i, "kept": k >= 0 or None, "kendall": k} for i, k in enumerate(kendalls)]

    one, other = of([0.9, -1, 0.8, 0.7, 0.2, 0.1, 0.6]), of([0.1, 0.2, 0.3, 0.9, 0.8, 0.7, -1])
    assert [r["id"] for r in choose(one, first=4, worst=1)] == [0, 2, 3, 5]
    assert [r["id"] for r in choose(other, first=4, worst=1)] == [0, 1, 2, 3, 5]


def test_a_walk_that_stands_still_at_the_image_is_shown_from_beside_it() -> None:
    """All that has any attribution is among the top k: J = 1 there, and its slope is exactly 0 in these numbers."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 2, bias=False))
    nn.init.zeros_(net[1].weight)
    net[1].weight.data[0] = 0.5
    x = torch.zeros(2, 1, 6, 6)
    x[:, :, 2, 1:3] = 1.0
    y = torch.zeros(2).long()
    attack = attribution_attacks(TOY, net, IG, images=True)[0]
    with torch.no_grad():
        clean, label = attack.seen(x, y)
    rows = [(5, 0), (9, 0)]
    moved = [step.x for step in attack.iterates(x, y, clean, label, start=attack.starts(x, rows), rows=rows)]
    torch.testing.assert_close(moved[-1], x, rtol=0, atol=0)
    records = [{"id": i, "label": 0, "attack": 0, "repeat": 0} for i, _ in rows]
    arrays = walk([attack], x, y, records, protocol=TOY)
    assert (arrays["perturbed"][:, -1] != arrays["image"]).any(axis=(1, 2, 3)).all()
    assert (arrays["kendall"][:, -1] < 1).all()


def test_written_files(case, tmp_path: Path, plain) -> None:
    net, x, y = case
    found = evaluate(net, x, y, protocol=TOY, map=IG, place=OutputDir(tmp_path), about={"run": "toy"})
    assert found.records == plain.records
    assert json.loads((tmp_path / "paper-ig.json").read_text())["run"] == "toy"
    assert len((tmp_path / "paper-ig.jsonl").read_text().splitlines()) == 12
    gallery = read_gallery(tmp_path / "paper-ig-gallery.npz")
    assert gallery.image.shape == (sum(bool(r["kept"]) for r in found.records), 1, 6, 6)
    assert gallery.after.shape == (*gallery.perturbed.shape[:2], 6, 6)
    by_id = {r["id"]: r for r in found.records}
    for g, i in enumerate(gallery.id.tolist()):
        if by_id[i]["iterate"]:
            at = gallery.iterations.tolist().index(by_id[i]["iterate"])
            assert gallery.kendall[g, at] == pytest.approx(by_id[i]["kendall"], abs=1e-6)
            assert gallery.kept[g, at]
    again = evaluate(net, x, y, protocol=TOY, map=IG, place=OutputDir(tmp_path))
    assert again.records == found.records


def test_a_finished_evaluation_is_not_summed_up_again(case, tmp_path: Path, monkeypatch) -> None:
    net, x, y = case
    words = {"protocol": TOY, "map": IG, "place": OutputDir(tmp_path)}
    first = evaluate(net, x, y, about={"command": "first"}, **words)
    stamp = (tmp_path / "paper-ig-gallery.npz").stat().st_mtime_ns
    again = evaluate(net, x, y, about={"command": "second"}, **words)
    assert again == first  # who made the records, and in what time, stays true
    assert (tmp_path / "paper-ig-gallery.npz").stat().st_mtime_ns == stamp
    fewer = evaluate(net, x[:8], y[:8], about={"command": "third"}, **words)
    assert (fewer.summary["examples"], fewer.summary["command"]) == (8, "third")
    assert evaluate(net, x, y, about={"command": "fourth"}, **words).summary["examples"] == 12
    (tmp_path / "paper-ig.json").unlink()  # killed before the summary
    assert evaluate(net, x, y, about={"command": "fifth"}, **words).summary["command"] == "fifth"
    monkeypatch.setattr("robattr.evaluation.run.__version__", "99")
    assert evaluate(net, x, y, about={"command": "sixth"}, **words).summary["command"] == "sixth"


def test_records_of_other_images_or_other_code_are_not_mixed_in(case, tmp_path: Path) -> None:
    class Dimmed(nn.Module):
        """The same weights behind other code."""

        def __init__(self, net: nn.Sequential) -> None:
            super().__init__()
            for name, part in net.named_children():
                self.add_module(name, part)

        def forward(self, x: Tensor) -> Tensor:
            x = 0.2 * x
            for part in self.children():
                x = part(x)
            return x

    net, x, y = case
    place = OutputDir(tmp_path)
    whole = evaluate(*case, protocol=TOY, map=IG, place=place)
    for model, images in ((Dimmed(net), x), (net, x.flip(0))):
        with pytest.raises(CheckpointError, match=r"the model and the examples .* got others .* --fresh"):
            evaluate(model, images, y, protocol=TOY, map=IG, place=place)
    other = y.clone()
    other[5] = (y[5] + 1) % 3
    with pytest.raises(CheckpointError, match="example 5: label"):
        evaluate(net, x, other, protocol=TOY, map=IG, place=place)
    assert evaluate(*case, protocol=TOY, map=IG, place=place).records == whole.records


def test_records_of_another_map_of_the_same_name_are_not_mixed_in(case, tmp_path: Path) -> None:
    """Also where the map is the same and the attack would follow another."""

    def own(attribute, guide=None):
        return from_callable(attribute, name="own", guide=guide or gradient_input())

    net, x, y = case
    whole = evaluate(*case, protocol=TOY, map=own(lambda model, x, y: x), place=OutputDir(tmp_path))
    followed = gradient_input()(net, x[:1], y[:1])[0].detach()
    expected = [at / 5 for map in (x[0, 0], followed) for at in center_of_mass(map.double().numpy())]
    assert whole.records[0]["centre"] == pytest.approx(expected, abs=1e-4)
    assert whole.records[2]["centre"] is None  # misclassified
    others = (
        own(lambda model, x, y: 1 - x),
        own(lambda model, x, y: x.flip(-1)),
        own(lambda model, x, y: x, guide=simple_gradient()),
        replace(own(lambda model, x, y: x), guide=None),
    )
    for other in others:
        with pytest.raises(CheckpointError, match=r"the map 'own' .* another of that name .* another name.*--fresh"):
            evaluate(*case, protocol=TOY, map=other, place=OutputDir(tmp_path))
    again = evaluate(*case, protocol=TOY, map=own(lambda model, x, y: x.clone()), place=OutputDir(tmp_path))
    assert again.records == whole.records


@pytest.mark.parametrize("damage", ["{bad", "{}", "[1]"])
def test_a_damaged_summary_is_written_again(case, tmp_path: Path, damage: str) -> None:
    place = OutputDir(tmp_path)
    whole = evaluate(*case, protocol=TOY, map=IG, place=place).summary
    (tmp_path / "paper-ig.json").write_text(damage, encoding="utf-8")
    again = evaluate(*case, protocol=TOY, map=IG, place=place).summary
    assert again["columns"] == whole["columns"]
    assert json.loads((tmp_path / "paper-ig.json").read_text(encoding="utf-8")) == again


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # what a CPU without bf16 units says
def test_records_of_another_precision_are_not_mixed_in(case, tmp_path: Path) -> None:
    net, x, y = case
    first = evaluate(net, x, y, protocol=TOY, map=IG, place=OutputDir(tmp_path)).summary
    assert first["precision"] == "fp32"
    with pytest.raises(CheckpointError, match="precision"):
        evaluate(net, x, y, protocol=TOY, map=IG, place=OutputDir(tmp_path), arithmetic="bf16")
    again = evaluate(
        net, x, y, protocol=TOY, map=IG, place=OutputDir(tmp_path), arithmetic="tf32"
    )  # on a CPU, the same
    assert again.summary == first
    low = evaluate(net, x, y, protocol=TOY, map=IG, arithmetic="bf16").summary
    assert low["precision"] == "bf16"
    assert low["columns"]["kendall"] != first["columns"]["kendall"]


def test_records_of_other_weights_are_not_mixed_in(case, tmp_path: Path) -> None:
    net, x, y = case
    evaluate(net, x[:4], y[:4], protocol=TOY, map=IG, place=OutputDir(tmp_path))
    other = toy_net()
    with torch.no_grad():
        other[0].weight.mul_(1.1)
    with pytest.raises(CheckpointError, match="weights"):
        evaluate(other, x[:4], y[:4], protocol=TOY, map=IG, place=OutputDir(tmp_path))
    discard(tmp_path, TOY, IG)
    assert not list(tmp_path.iterdir())


WORKER = """
import sys, time, torch
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_evaluate_run import IG, TOY, toy_net
from robattr.evaluation import Place, evaluate, run
from robattr.engine.processes import join
run.BLOCK = (2, 2)
torch.manual_seed(0)
net = toy_net()
x = torch.rand(12, 1, 6, 6, generator=torch.Generator().manual_seed(1))
y = net(x).argmax(dim=1)
def slowly(done, total):
    print(done, flush=True)
    time.sleep({pause})
with join("cpu") as world:
    evaluate(net, x, y, protocol=TOY, map=IG, place=Place(Path({out!r}), world.rank, world.size), progress=slowly)
"""


def start(out: Path, *, pause: float = 0.0, processes: int = 1) -> subprocess.Popen[str]:
    script = out.parent / f"{out.name}.py"
    script.write_text(WORKER.format(tests=str(Path(__file__).parents[1]), out=str(out), pause=pause))
    launch = [sys.executable]
    if processes > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*launch, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def test_a_killed_evaluation_resumes_and_processes_share_the_work(tmp_path: Path) -> None:
    whole, killed, shared = tmp_path / "whole", tmp_path / "killed", tmp_path / "shared"
    others = [start(whole), start(shared, processes=2)]
    victim = start(killed, pause=600)
    assert victim.stdout is not None
    assert victim.stdout.readline().strip() == "2"
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    kept = [line for file in killed.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert len(kept) == 2
    for process in [*others, start(killed)]:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    expected = (whole / "paper-ig.jsonl").read_bytes()
    assert len(expected.splitlines()) == 12
    assert (killed / "paper-ig.jsonl").read_bytes() == expected
    assert (shared / "paper-ig.jsonl").read_bytes() == expected
    summaries = [json.loads((f / "paper-ig.json").read_text()) for f in (whole, killed, shared)]
    assert summaries[0]["columns"] == summaries[1]["columns"] == summaries[2]["columns"]
    assert [s["earlier"] for s in summaries] == [0, 2, 0]  # what its seconds do not count


def test_compare_pairs_examples(plain) -> None:
    better = [{**r, "kendall": None if r["kendall"] is None else r["kendall"] + 0.1} for r in plain.records]
    found = compare(plain.records, better[:-1])
    assert found["kendall"].difference.value == pytest.approx(0.1)
    assert found["kendall"].difference.n == 9
    assert found["kendall"].unpaired == 1
    assert found["topk"].difference.value == 0
