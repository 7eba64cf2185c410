"""An audit of the user's model: any module, any data, one page; the model is left as it was."""

from __future__ import annotations

import json
import math
import os
from copy import deepcopy
from functools import partial
from html import unescape
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import robattr
from audit_fixtures import Attentive, Plain, bars, folder, taught
from robattr._text import interval, number, numbers
from robattr.auditing import Preprocessing, WrappedModel, wrap
from robattr.auditing.as_dataset import as_dataset, draw
from robattr.auditing.wrapped_model import logits
from robattr.data import Dataset
from robattr.errors import CheckpointError, DataError, InvalidInput, UnsupportedModel
from robattr.metrics.intervals import mean
from robattr.reporting.gallery import read_gallery

QUICK = {"steps": 2, "points": 3, "examples": 9, "device": "cpu", "eps": 8 / 255}
ENOUGH = {**QUICK, "examples": 12}  # for a verdict


@pytest.fixture(scope="module")
def plain() -> nn.Module:
    torch.manual_seed(0)
    return taught(Plain(), *bars())


@pytest.mark.parametrize(
    ("text", "value"), [("8/255", 8 / 255), (" 0.03 ", 0.03), ("1e-2", 0.01), ("-1", -1.0), ("2", 2.0)]
)
def test_numbers_are_read(text: str, value: float) -> None:
    assert number(text) == value


@pytest.mark.parametrize(
    "text", ["", "8/0", "nan", "inf", "__import__('os')", "1+1", "8//255", "2**9", "1e999999999999"]
)
def test_numbers_are_never_evaluated(text: str) -> None:
    with pytest.raises(InvalidInput, match="expected a number"):
        number(text)


def test_lists_of_numbers() -> None:
    assert numbers("0.485,1/2") == (0.485, 0.5)
    assert interval("0,255") == (0.0, 255.0)
    for wrong in ("1,0", "0", "0,1,2"):
        with pytest.raises(InvalidInput, match="two rising numbers"):
            interval(wrong)


def test_logits_are_found_and_nothing_else_is_taken_for_them() -> None:
    z = torch.zeros(2, 3)
    for out in (z, SimpleNamespace(logits=z), {"logits": z}):
        assert logits(out) is z
    for out in ((z, z), None, SimpleNamespace(scores=z), {"z": z}):
        with pytest.raises(UnsupportedModel, match="expected logits"):
            logits(out)


def test_the_preprocessing_is_part_of_the_network(plain: nn.Module) -> None:
    x, _ = bars(4)
    made, notes = wrap(plain, preprocessing={"mean": [0.2], "std": [0.5], "axis": -3})
    with torch.no_grad():
        torch.testing.assert_close(made.eval()(x), plain((x - 0.2) / 0.5))
    assert not notes
    assert made.module is plain
    assert made.state_dict().keys() == {f"module.{name}" for name in plain.state_dict()}
    three = WrappedModel(nn.Identity(), Preprocessing((0.1, 0.2, 0.3), (1.0, 2.0, 4.0)))
    torch.testing.assert_close(three(torch.ones(1, 3, 2, 2))[0, :, 0, 0], torch.tensor([0.9, 0.4, 0.175]))
    torch.testing.assert_close(three(torch.ones(1, 3)), torch.tensor([[0.9, 0.4, 0.175]]))
    with pytest.raises(InvalidInput, match="expected 1 channels in mean"):
        three(torch.ones(1, 1, 2, 2))
    odd = ({"mean": math.nan}, {"mean": 0.5, "std": math.inf})
    for wrong in ({"mean": 0.5, "std": 0.0}, {"avg": 1.0}, {"mean": 0.5, "axis": -1}, *odd):
        with pytest.raises(InvalidInput):
            wrap(plain, preprocessing=wrong)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_converted_in_a_copy(kind: torch.dtype) -> None:
    net = Plain().to(kind).eval()
    made, notes = wrap(net)
    assert notes[0].startswith(f"weights in {str(kind).removeprefix('torch.')} were converted to float32 in a copy")
    assert {p.dtype for p in net.parameters()} == {kind}
    assert {p.dtype for p in made.parameters()} == {torch.float32}
    x, _ = bars(2)
    assert made.eval()(x).dtype == torch.float32


def test_wrappers_come_off_and_sync_batch_norm_becomes_plain() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.SyncBatchNorm(2), nn.Flatten(), nn.Linear(72, 3))
    net[1].running_mean.fill_(0.3)
    for wrapped in (nn.DataParallel(net), torch.compile(net, backend="eager")):
        made, notes = wrap(wrapped, device="cpu")  # where there is one GPU, DataParallel moves the module there
        net.cpu()
        assert type(wrapped).__name__ in notes[0]
        assert "SyncBatchNorm" in notes[1]
        assert not [m for m in made.modules() if isinstance(m, nn.SyncBatchNorm)]
        x, _ = bars(2)
        with torch.no_grad():
            torch.testing.assert_close(made.eval()(x), net.eval()(x))
        net.train()
    assert isinstance(net[1], nn.SyncBatchNorm)
    with pytest.raises(UnsupportedModel, match="Module"):
        wrap(lambda x: x)  # type: ignore[arg-type]


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
        "Attack against random noise",
        "Class by class",
        "Robustness against",
    ):
        assert heading in text
    assert found.verdict.headline.split(".")[0] in unescape(text)
    assert found.verdict.level != "unclear" or found.verdict.doubts

    finished = (page.parent / "audit" / "records" / "strict-ig.jsonl").read_bytes()
    named = [page.parent / "audit" / name for name in ("config.json", "environment.json")]
    again = robattr.audit(plain, bars(), maps="ig,sg", out=page, **ENOUGH)  # nothing is measured twice
    assert (page.parent / "audit" / "records" / "strict-ig.jsonl").read_bytes() == finished
    assert again.verdict == found.verdict
    about = [file.read_bytes() for file in named]
    with pytest.raises(CheckpointError, match="examples"):
        robattr.audit(plain, bars(seed=2), maps="ig,sg", out=page, name="other", **ENOUGH)
    for other in ({"eps": 0.1}, {"steps": 7}, {"points": 7}):
        with pytest.raises(CheckpointError, match="attack"):
            robattr.audit(plain, bars(), maps="ig,sg", out=page, name="other", **{**ENOUGH, **other})
    with torch.no_grad():
        plain.head.bias[0] += 0.1
    with pytest.raises(CheckpointError, match="weights"):
        robattr.audit(plain, bars(), maps="ig,sg", out=page, name="other", **ENOUGH)
    assert [file.read_bytes() for file in named] == about  # records never get another model's name or command
    anew = robattr.audit(plain, bars(), protocol="paper", out=page, fresh=True, **ENOUGH)
    assert [e.summary["map"] for e in anew.run.evaluations] == ["ig"]  # nothing of the old one is left
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("do not touch")
    with pytest.raises(CheckpointError, match="not an audit"):
        robattr.audit(plain, bars(), out=tmp_path / "mine.html", **QUICK)


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
    from robattr.reporting.audit_sections import classes, control

    section = classes(found.run)
    assert [row[1] for row in section.rows] == ["3", "3", "3"] or sum(int(row[1]) for row in section.rows) == 9
    records = found.run.evaluations[0].records
    for name, _, _, topk, _ in section.rows:
        expected = mean(r["topk"] for r in records if str(r["label"]) == name and r["kept"] is not None)
        assert topk.startswith(f"{100 * expected.value:.1f}%")
    (row,) = control(found.run).rows
    noise = found.run.evaluations[0].summary["columns"]["noise_topk"]["value"]
    assert row[2].startswith(f"{100 * noise:.1f}%")


def test_a_folder_of_images_with_its_class_names(tmp_path) -> None:
    top = folder(tmp_path / "images", ("x", "y", "z"))
    (top / "x" / "broken.png").write_bytes(b"\x89PNG not really")
    (top / "x" / "\x1b[31mred.jpg").write_bytes(b"")
    thumbs = folder(top / ".thumbs", each=1)
    Image.new("RGB", (5, 5)).save(thumbs / "small.png")
    data = as_dataset(top)
    assert data.shape == (3, 8, 8)
    assert data.classes == ("x", "y", "z")
    assert len(data.skipped) == 2
    x, y, ids = draw(data, 7, seed=5)
    assert (len(x), ids) == (7, sorted(ids))
    assert len(set(y.tolist())) > 1  # not the first seven, which are all of one class
    named = as_dataset(top, classes=["z", "other", "y", "x"])
    assert sorted(set(named.train.labels.tolist())) == [0, 2, 3]
    assert torch.equal(named.train.images, data.train.images)
    with pytest.raises(InvalidInput, match=r"got 'x' more than once.*rename"):
        as_dataset(top, classes=["x", "y", "z", "x"])
    with pytest.raises(InvalidInput, match="not among the 2 class names"):
        as_dataset(top, classes=["x", "y"])
    with pytest.raises(DataError, match="neither a folder"):
        as_dataset(tmp_path / "nowhere")
    (tmp_path / "bare").mkdir()
    with pytest.raises(DataError, match="no readable image"):
        as_dataset(tmp_path / "bare")
    folder(top / "w", ("deep",), each=1)
    Image.new("RGB", (9, 7)).save(top / "x" / "odd.png")
    with pytest.raises(InvalidInput, match="--size 224"):
        as_dataset(top)


def test_a_name_that_is_a_dataset_and_a_folder_is_not_guessed(tmp_path, monkeypatch) -> None:
    folder(tmp_path / "mnist", each=4)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=r"a dataset and a folder here: write \./mnist"):
        as_dataset("mnist")
    assert len(as_dataset("./mnist").train) + len(as_dataset("./mnist").test) < 100  # the folder's few, not MNIST's


def test_examples_come_from_what_was_set_apart(tmp_path) -> None:
    for name, each in (("train", 8), ("val", 2)):
        folder(tmp_path / name, each=each)
    data = as_dataset(tmp_path)
    assert [len(data.train), len(data.validation), len(data.test)] == [24, 6, 0]
    assert torch.equal(draw(data, None)[0], data.pixels(data.validation.images))


def test_data_in_other_forms() -> None:
    x, y = bars(12)
    given = as_dataset((x, y))
    assert as_dataset(given) is given
    with pytest.raises(
        InvalidInput, match=r"expected the bounds of the dataset tensors, \(0\.0, 1\.0\), got \(0, 255\)"
    ):
        as_dataset(given, bounds=(0, 255))
    bytes_ = (x * 255).round().to(torch.uint8)
    torch.testing.assert_close(as_dataset((bytes_, y), bounds=(0.0, 255.0)).train.images, bytes_.float())
    far, hollow = x.clone(), x.clone()
    far[3], hollow[3] = 50, torch.nan
    for wrong, words in ((far, r"within the bounds \(0, 1\), got .* … 50"), (hollow, "finite inputs")):
        with pytest.raises(InvalidInput, match=words):
            as_dataset((wrong, y), held_out=0.25)
    pairs = as_dataset(list(zip(x, y.tolist(), strict=True)))
    assert torch.equal(pairs.train.images, x)
    table = x.flatten(1)
    for rows in ((table, y.tolist()), (table.numpy(), y.numpy()), TensorDataset(table, y)):
        assert torch.equal(as_dataset(rows).train.images, table)
        assert torch.equal(as_dataset(rows).train.labels, y)
    for odd, words in (
        (DataLoader(TensorDataset(x, y), 4), r"got a DataLoader, .* pass its \.dataset"),
        ({"x": x, "y": y}, r"got dict: pass the pair \(x, y\)"),
        ((x, ["cat"] * len(x)), "number the classes from 0"),
        ((x.numpy().astype(object), y), r"astype\('float32'\)"),
    ):
        with pytest.raises(InvalidInput, match=words):
            as_dataset(odd)
    for bounds in (None, (1.0,), (1.0, 0.0), (0.0, math.inf), (math.nan, 1.0)):
        with pytest.raises(InvalidInput, match="with low < high"):
            as_dataset((x, y), bounds=bounds)
    parts = as_dataset((x, y), held_out=0.25)
    assert [len(parts.train), len(parts.validation), len(parts.test)] == [6, 3, 3]
    mini = as_dataset("fashion-mini")
    assert isinstance(mini, Dataset)
    turned = as_dataset("fashion-mini", classes=mini.classes[::-1])
    assert torch.equal(turned.test.labels, 9 - mini.test.labels)
    with pytest.raises(InvalidInput, match="got None"):
        as_dataset(None)
    with pytest.raises(InvalidInput, match="labels from 0 on, got -1"):
        as_dataset((x, 2 * (y > 0).long() - 1))
    for wrong in ((x.long(), y), (x, y.float()), (x, y[:3]), (x[:0], y[:0])):
        with pytest.raises(InvalidInput):
            as_dataset(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"protocol": "lax"}, {"eps": 0.0}, {"eps": -1.0}, {"examples": 0}, {"steps": 0}, {"maps": "igg"},
        {"maps": "ig,ig"},
        {"maps": "captum:Occlusion"}, {"maps": "elsewhere:Map"}, {"out": "audit"}, {"out": "audit.pdf"},
        {"bounds": (0.0, 0.5)},
        {"device": "tpu"}, {"seed": -1}, {"eps": "8/255"}, {"size": 14}, {"channels": 3},
    ],
)  # fmt: skip
def test_mistakes_are_refused_with_a_reason(plain: nn.Module, wrong: dict, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(robattr.RobattrError, match=r".{20}"):
        robattr.audit(plain, bars(), **{**QUICK, "protocol": "paper", **wrong})


@pytest.mark.parametrize(("scale", "eps", "words"), [(1, 8, r"8/255\?"), (2, 8, r"8/255 of the range, 0\.06275\?")])
def test_a_radius_beyond_the_range_is_refused(plain: nn.Module, scale: int, eps: float, words: str) -> None:
    x, y = bars()
    with pytest.raises(InvalidInput, match=f"got 8: {words}"):
        robattr.audit(plain, (scale * x, y), bounds=(0.0, scale), **{**QUICK, "eps": eps})


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
    for wrong in ({"bounds": (0.0, 0.5)}, {"preprocessing": {"mean": [0.5, 0.5]}}):
        with pytest.raises(InvalidInput):
            robattr.audit(plain, bars(), protocol="paper", out=page, **wrong, **QUICK)
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
    from robattr.auditing.audit import model_classes

    top = folder(tmp_path / "images", ("cat", "dog"), each=1)
    net = nn.Identity()
    net.config = SimpleNamespace(id2label={"1": "cat", "0": "dog", "2": "owl"})  # type: ignore[assignment]
    assert model_classes(net, top) == ["dog", "cat", "owl"]
    net.config = SimpleNamespace(id2label={0: "cat", 1: "owl"})  # type: ignore[assignment]
    assert model_classes(net, top) is None
    assert model_classes(nn.Identity(), top) is None


def test_the_examples_of_an_audit_are_a_function_of_the_seed() -> None:
    data = as_dataset(bars(30))
    assert draw(data, 5, seed=1)[2] == draw(data, 5, seed=1)[2]
    assert draw(data, 5, seed=1)[2] != draw(data, 5, seed=2)[2]
    assert np.array_equal(draw(data, None)[2], np.arange(30))


def test_own_maps_are_compiled_on_request_and_foreign_ones_never(plain: nn.Module, monkeypatch, tmp_path) -> None:
    from robattr.auditing import record

    asked: dict[str, bool] = {}
    begin = record.evaluate

    def noted(*args, **settings):
        asked[settings["map"].name] = settings.pop("compiled")
        return begin(*args, **settings)

    monkeypatch.setattr(record, "evaluate", noted)
    robattr.audit(plain, bars(), maps="sg,captum:Saliency", protocol="paper", compiled=True, **QUICK)
    assert asked == {"sg": True, "captum-Saliency": False}
