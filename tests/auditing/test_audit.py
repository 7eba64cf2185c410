"""An audit of the user's model: any module, any data, one page; the model is left as it was."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from copy import deepcopy
from functools import partial
from html import unescape
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import robattr
from audit_fixtures import Attentive, Plain, bars, folder, taught
from memory_fixtures import DEVICES, Memory
from robattr._progress import silent
from robattr.auditing.as_dataset import as_dataset, model_classes
from robattr.errors import InvalidInput, UnsupportedModel
from robattr.evaluation.gallery import read_gallery
from robattr.metrics.intervals import mean
from robattr.reporting.audit_sections import classes
from robattr.reporting.html import page

QUICK = {"steps": 1, "points": 2, "examples": 6, "device": "cpu", "eps": 8 / 255}
ENOUGH = {**QUICK, "examples": 12}  # for a verdict


@pytest.fixture(scope="module")
def plain() -> nn.Module:
    torch.manual_seed(0)
    return taught(Plain(), *bars())


def test_an_audit_reports_everything_and_leaves_the_model_alone(plain: nn.Module, tmp_path) -> None:
    plain.train()
    plain.stem.weight.requires_grad_(False)
    before, modes = deepcopy(plain.state_dict()), [m.training for m in plain.modules()]
    page = tmp_path / "deep" / "audit.html"
    found = robattr.audit(plain, bars(), maps="ig,sg", out=page, **ENOUGH)
    assert all(torch.equal(value, before[name]) for name, value in plain.state_dict().items())
    assert modes == [m.training for m in plain.modules()]
    assert not plain.stem.weight.requires_grad
    plain.stem.weight.requires_grad_(True)

    kinds = {(e.summary["protocol"], e.summary["map"]) for e in found.run.evaluations}
    assert kinds == {(p, m) for p in ("paper", "strict") for m in ("ig", "sg")}
    for e in found.run.evaluations:
        assert {"nat_acc", "adv_acc", "topk", "kendall", "noise_topk", "noise_kendall"} <= e.summary["columns"].keys()
        assert len(e.records) == 12
        assert e.summary["curves"]["score_vs_eps"]["eps"][0] == 0.0
        assert e.summary["settings"]["k"] == 6  # a tenth of the 64 pixels
        assert e.gallery is not None
    text = page.read_text(encoding="utf-8")
    for heading in (
        "Verdict",
        "What to do next",
        "Noise TopK",
        "Class by class",
        "Robustness against",
    ):
        assert heading in text
    assert found.verdict.headline.split(".")[0] in unescape(text)
    assert found.verdict.level != "unclear" or found.verdict.doubts


def test_models_with_logits_attention_and_any_shape_of_input() -> None:
    x, y = bars()
    found = robattr.audit(taught(Attentive(), x, y), (x.numpy(), y.numpy()), protocol="paper", **QUICK)
    assert found.page is None
    assert found.run.evaluations[0].summary["columns"]["nat_acc"]["value"] == 1.0
    wide = torch.cat([x, x], dim=3)[:, :, :6]  # 6×16: not square
    net = taught(nn.Sequential(nn.Conv2d(1, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(4 * 4 * 14, 3)), wide, y)
    assert robattr.audit(net, (wide, y), protocol="paper", **QUICK).run.evaluations[0].summary["settings"]["k"] == 9


def test_class_scores_are_those_of_the_records(plain: nn.Module) -> None:
    found = robattr.audit(plain, bars(), protocol="paper", **QUICK)
    section = classes(found.run)
    assert sum(int(row[1]) for row in section.rows) == len(found.run.evaluations[0].records)
    records = found.run.evaluations[0].records
    for name, _, _, topk, _ in section.rows:
        expected = mean(r["topk"] for r in records if str(r["label"]) == name and r["kept"] is not None)
        assert topk.startswith(f"{100 * expected.value:.2f}%")
    noise = found.run.evaluations[0].summary["columns"]["noise_topk"]["value"]
    assert f">{100 * noise:.2f}%" in page([found.run])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"protocol": "lax"}, "unknown protocol 'lax'"),
        ({"eps": 0.0}, "number above 0 as eps, such as 8 / 255, got 0.0"),
        ({"eps": -1.0}, "number above 0 as eps"),
        ({"eps": "8/255"}, "number above 0 as eps, such as 8 / 255, got '8/255'"),
        ({"examples": 0}, "examples of 1 to .*, got 0"),
        ({"steps": 0}, "steps of 1 to 100,000, got 0"),
        ({"seed": -1}, r"seed of at least 0, below 2\*\*63, got -1"),
        ({"maps": "igg"}, "did you mean 'ig'"),
        ({"maps": "ig,ig"}, "at least one map, each once"),
        ({"maps": "captum:Occlusion"}, "captum:Occlusion cannot be used by name"),
        ({"maps": "elsewhere:Map"}, "expected ig, sg, gi, smoothgrad or captum:Method"),
        ({"out": "audit"}, "ends in .html, such as audit.html, got 'audit'"),
        ({"out": "audit.pdf"}, "ends in .html"),
        ({"bounds": (0.0, 0.5)}, r"within the bounds \(0, 0.5\)"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"size": 14}, "size applies only to folders of images"),
        ({"size": 14, "channels": 3}, "size and channels applies only to folders"),
    ],
)
def test_mistakes_are_refused_with_a_reason(plain: nn.Module, wrong: dict, words: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(robattr.RobattrError, match=words):
        robattr.audit(plain, bars(), **{**QUICK, "protocol": "paper", **wrong})
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(("scale", "eps", "words"), [(1, 8, r"8/255\?"), (2, 8, r"8/255 of the range, 0\.06275\?")])
def test_a_radius_beyond_the_range_is_refused(plain: nn.Module, scale: int, eps: float, words: str) -> None:
    x, y = bars()
    with pytest.raises(InvalidInput, match=f"got 8: {words}"):
        robattr.audit(plain, (scale * x, y), bounds=(0.0, scale), **{**QUICK, "eps": eps})


def test_a_radius_of_less_than_a_grey_level_is_refused(plain: nn.Module) -> None:
    x, y = bars()
    with pytest.raises(InvalidInput, match=r"got 0.0313725, less than a tenth of a grey level: 8\?"):
        robattr.audit(plain, (255 * x, y), bounds=(0.0, 255.0), **QUICK)


@pytest.mark.parametrize("most", [0, 1])
def test_a_model_of_one_logit_is_refused(most: int) -> None:
    x, y = bars()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 1))
    with pytest.raises(UnsupportedModel, match=r"at least two classes.*\[0, z\]"):
        robattr.audit(net, (x, y.clamp(max=most)), **QUICK)


class Casting(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.half())


@pytest.mark.parametrize(
    ("net", "reason"),
    [(nn.Sequential(nn.Flatten(), nn.Linear(10, 3)), "cannot be multiplied"), (Casting().half(), "Half")],
)
def test_a_model_that_fails_on_the_data_is_refused_in_one_line(net: nn.Module, reason: str, tmp_path) -> None:
    for call in (robattr.audit, partial(robattr.harden, out=tmp_path)):
        with pytest.raises(
            UnsupportedModel, match=rf"takes examples of shape \(1, 8, 8\) .*{reason}.*: give them"
        ) as said:
            call(net, bars(), device="cpu")
        assert "\n" not in str(said.value)


def test_labels_that_the_model_has_no_output_for_are_refused(plain: nn.Module) -> None:
    x, y = bars()
    with pytest.raises(InvalidInput, match=r"labels in 0\.\.2 .* got 2\.\.4"):
        robattr.audit(plain, (x, y + 2), **QUICK)


@pytest.mark.parametrize(("channels", "shown"), [(1, 1), (2, 1), (3, 3), (5, 3)])
def test_images_of_any_number_of_channels_are_shown_by_true_values(channels: int, shown: int, tmp_path) -> None:
    x, y = bars(channels=channels)
    net = taught(nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 8), nn.ReLU(), nn.Linear(8, 3)), x, y)
    found = robattr.audit(net, (x, y), protocol="paper", out=tmp_path / "audit.html", **QUICK)
    gallery = read_gallery(found.run.evaluations[0].gallery)
    expected = (255 * x[torch.from_numpy(gallery.id)][:, :shown]).round().byte()
    assert torch.equal(torch.from_numpy(gallery.image), expected)
    assert gallery.perturbed.shape[2] == shown


def test_a_refused_mistake_is_not_in_the_way_of_the_right_call(plain: nn.Module, tmp_path) -> None:
    page = tmp_path / "audit.html"
    for wrong, words in (
        ({"bounds": (0.0, 0.5)}, "within the bounds"),
        ({"preprocessing": {"mean": [0.5, 0.5]}}, "expected 1 channels in mean, or one number, got 2"),
    ):
        with pytest.raises(InvalidInput, match=words):
            robattr.audit(plain, bars(), protocol="paper", out=page, **wrong, **QUICK)
        assert not any(tmp_path.iterdir())
    assert robattr.audit(plain, bars(), protocol="paper", out=page, **QUICK).page == page


def test_a_folder_that_is_not_there_is_named(plain: nn.Module) -> None:
    with pytest.raises(robattr.RobattrError, match=r"no/fashion-min is neither a folder .* nor a dataset"):
        robattr.audit(plain, "no/fashion-min", **QUICK)


def test_hostile_names_stay_text(plain: nn.Module, tmp_path) -> None:
    evil = ("<script>alert(1)</script>", "../../etc", "</script><img src=x onerror=alert(1)>")
    page = tmp_path / "audit.html"
    robattr.audit(plain, bars(), out=page, name=evil[2], classes=evil, protocol="paper", **QUICK)
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "<img" not in text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["audit", "audit.html"]
    assert json.loads((tmp_path / "audit" / "config.json").read_text())["name"] == evil[2]


@pytest.mark.parametrize("names", [("low", "middle", "top", "one more"), ("low", "top")])
@pytest.mark.parametrize("call", [robattr.audit, robattr.harden, robattr.doctor])
def test_class_names_are_one_for_each_output(call, names: tuple[str, ...], tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    top = folder(tmp_path / "images", ("low", "top"), each=12)
    message = f"expected 3 class names, one for each output of the model in order, got {len(names)}"
    if call is robattr.doctor:
        assert message in str(call(Plain(3), top, classes=names, device="cpu"))
        return
    with pytest.raises(InvalidInput, match=message):
        call(Plain(3), top, classes=names, device="cpu")


def test_a_folder_keeps_its_class_names(tmp_path) -> None:
    top = folder(tmp_path / "images", ("low", "middle", "top"), each=4)
    net = taught(Plain(3), *bars(60, channels=3))
    found = robattr.audit(net, top, protocol="paper", out=tmp_path / "audit.html", **QUICK)
    assert found.run.evaluations[0].summary["classes"] == ["low", "middle", "top"]
    assert {row[0] for row in classes(found.run).rows} <= {"low", "middle", "top"}
    assert "middle" in (tmp_path / "audit.html").read_text(encoding="utf-8")


def test_names_that_are_no_text_are_written_out(tmp_path) -> None:
    torn = os.fsdecode(b"\xff\xfe")
    top = folder(tmp_path / torn, ("a", torn, "c\x1b[2J"))
    (top / "a" / f"{torn}.png").write_bytes(b"")
    data = as_dataset(top)
    assert data.name == r"\udcff\udcfe"
    assert data.classes == ("a", r"c\x1b[2J", r"\udcff\udcfe")
    net = taught(Plain(3), data.pixels(data.train.images), data.train.labels)
    found = robattr.audit(net, top, out=tmp_path / "audit.html", protocol="paper", **QUICK)
    assert found.skipped == (r"a/\udcff\udcfe.png",)
    assert r"\udcff\udcfe.png" in (tmp_path / "audit.html").read_text(encoding="utf-8")


def test_huggingface_class_names_are_used_where_the_folders_carry_them(tmp_path) -> None:
    top = as_dataset(folder(tmp_path / "images", ("cat", "dog"), each=1))
    net = nn.Identity()
    net.config = SimpleNamespace(id2label={"1": "cat", "0": "dog", "2": "owl"})  # type: ignore[assignment]
    assert model_classes(net, top) == ["dog", "cat", "owl"]
    net.config = SimpleNamespace(id2label={0: "cat", 1: "owl"})  # type: ignore[assignment]
    assert model_classes(net, top) is None
    assert model_classes(nn.Identity(), top) is None


@pytest.mark.parametrize("device", DEVICES)
def test_where_memory_runs_out_an_audit_goes_on_in_parts(device, tmp_path) -> None:
    """From the second evaluation on, under the strict protocol."""
    memory = Memory(device)
    net = memory.net(inputs=64)
    x = bars(24)[0].double()
    y = net(x.to(device)).argmax(dim=1).cpu()
    settings = {**QUICK, "examples": 24, "points": 4, "device": device, "precision": "fp32"}

    def scores(name: str, watch=silent) -> list[float]:
        found = robattr.audit(net, (x, y), out=tmp_path / f"{name}.html", watch=watch, **settings)
        assert [e.summary["protocol"] for e in found.run.evaluations] == ["paper", "strict"]
        return [r[name] for e in found.run.evaluations for r in e.records for name in ("topk", "kendall")]

    with memory.measured():
        whole = scores("whole")
    assert memory.failures == 0
    with ExitStack() as limits:

        def limit(title: str, done: int, total: int, unit: str = "examples") -> None:
            if (title, done) == ("strict ig", 0):
                limits.enter_context(memory.scarce(0.3))

        parts = scores("parts", limit)
    assert memory.failures > 0
    assert parts == pytest.approx(whole, abs=1e-9)
