"""Every kind of reference opens the same network, data and settings."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from audit_fixtures import folder
from robattr import data, load_model, models, recipes
from robattr._progress import silent
from robattr.auditing.as_dataset import as_dataset
from robattr.cli import app
from robattr.errors import CheckpointError, InvalidInput
from robattr.evaluation import protocol
from robattr.models import zoo
from robattr.models.architecture import RENAMED
from robattr.reproduce import Job
from robattr.reproduce.execution import evaluate_job
from robattr.runs import measure_on_validation, open_run
from robattr.training import TrainConfig, train

RUN = TrainConfig(method="natural", steps=20, lr=5e-3, batch=16, eps=0.05)
NAMES = ("cat", "dog", "owl")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, short_search) -> None:
    real = protocol.scaled
    small = {"steps": 1, "pgd_steps": 1, "repeats": 1, "N": 2}
    monkeypatch.setattr(protocol, "scaled", lambda *a, **k: replace(real(*a, **k), **small))


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A short run on a folder of images."""
    images = folder(tmp_path / "pets", NAMES, each=20)
    return train(replace(RUN, dataset=str(images)), tmp_path / "run", device="cpu").path


def test_a_run_directory_and_its_weights_file_open_alike(trained: Path) -> None:
    whole, file = open_run(trained), open_run(trained / "model.safetensors")
    assert whole.config == file.config
    assert whole.config is not None
    assert (whole.config.method, whole.config.eps) == ("natural", 0.05)
    assert whole.data.classes == file.data.classes == NAMES
    assert not whole.model.training
    x, _, _ = whole.data.examples("test")
    assert torch.equal(whole.model(x), file.model(x))
    assert torch.equal(whole.model(x), load_model(trained)(x))


def test_images_have_the_size_of_the_training(trained: Path, tmp_path: Path) -> None:
    """Those of a folder, which the command trains at 64×64, and of a dataset given in Python; files are 8×8."""
    images = tmp_path / "pets"
    grey = train(
        replace(RUN, dataset=str(images)), tmp_path / "grey", dataset=data.from_folder(images, size=12, channels=1),
        device="cpu",
    ).path  # fmt: skip
    for path, shape in ((trained, (3, 64, 64)), (trained / "model.safetensors", (3, 64, 64)), (grey, (1, 12, 12))):
        assert as_dataset(images, model=load_model(path)).shape == shape
        assert open_run(path).data.shape == shape
    assert as_dataset(images, model=load_model(trained), size=9).shape == (3, 9, 9)
    assert as_dataset(images, model=models.small_cnn(channels=3)).shape == (3, 8, 8)


@pytest.mark.usefixtures("quick")
def test_a_folder_keeps_its_class_names_in_every_evaluation(trained: Path) -> None:
    """By the command, by a reproduction; the sweep's measure reads the same data at the training's radius."""
    words = ["evaluate", str(trained), "--examples", "3", "--maps", "sg", "--device", "cpu"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    config = open_run(trained).config
    assert config is not None
    evaluate_job(Job(config, trained, map="ig", examples=3), device="cpu", data_dir=None, watch=silent)
    for map in ("sg", "ig"):
        summary = json.loads((trained / "records" / f"paper-{map}.json").read_text(encoding="utf-8"))
        assert tuple(summary["classes"]) == NAMES
        assert summary["dataset"] == "pets"
    scores = measure_on_validation(4, device="cpu")(trained)
    assert list(scores) == ["nat_acc", "adv_acc", "topk", "kendall"]
    config = json.loads((trained / "config.json").read_text(encoding="utf-8"))
    (trained / "config.json").write_text(json.dumps({**config, "eps": config["eps"] / 1000}), encoding="utf-8")
    assert measure_on_validation(4, device="cpu")(trained) == scores, "every run of a sweep is attacked within one ε"
    (trained / "config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.usefixtures("quick")
def test_a_measurement_of_a_sweep_shows_how_far_it_is(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("robattr.evaluation.cost.seconds_per_pass", lambda *_: 60.0)
    measure_on_validation(4, device="cpu")(trained)
    first, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf"{trained.name}: about .* for 4 validation examples", first)
    assert last.startswith(f"{trained.name}: 4 of 4 validation examples, in ")


def test_another_dataset_may_be_a_folder(trained: Path, tmp_path: Path) -> None:
    others = folder(tmp_path / "others", NAMES[::-1], each=4)
    opened = open_run(trained, dataset=str(others))
    assert opened.data.name == "others"
    assert opened.config == open_run(trained).config


def test_a_users_own_network_is_built_by_its_function(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_nets_of_test_runs.py").write_text(
        "from torch import nn\n\n\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64 * 64 * 3, 3))\n"
    )
    config = open_run(trained).config
    assert config is not None
    own = train(replace(config, model="own_nets_of_test_runs:make"), tmp_path / "own", device="cpu").path
    with pytest.raises(InvalidInput, match=r"config.json names code, 'own_nets_of_test_runs:make'.*--trust-code"):
        open_run(own)
    assert type(open_run(own, trust=True).model[1]).__name__ == "Linear"
    assert type(load_model(own, trust=True)[1]).__name__ == "Linear"
    with pytest.raises(CheckpointError, match="does not say which network"):
        open_run(own / "model.safetensors")


HOSTILE = """open("ran", "w").close()
from robattr.models import small_cnn as go
from robattr.objectives import natural as rho
"""


@pytest.mark.parametrize(
    "command",
    [
        "evaluate . --examples 1",
        "evaluate fashion-mini.safetensors --data fashion-mini --transfer . --examples 1",
        "audit . --data fashion-mini --examples 1",
        "harden . --data fashion-mini --examples 1",
        "doctor .",
        "train --out . --fresh",
        "train --config config.json --out elsewhere",
        "sweep --config config.json --over m=2 --out elsewhere",
        "train --config objective.json --out elsewhere",
    ],
)
def test_no_file_runs_code(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name in a config is not imported, by no command, even with the module beside it."""
    monkeypatch.chdir(tmp_path)
    name = f"hostile_{tmp_path.name}".replace("-", "_")  # a module is imported once per process
    Path(f"{name}.py").write_text(HOSTILE)
    models.save_model(models.small_cnn(), "model.safetensors")
    models.save_model(models.small_cnn(), "fashion-mini.safetensors")
    config = {**TrainConfig(steps=1, batch=2).as_dict(), "model": f"{name}:go"}
    Path("config.json").write_text(json.dumps(config))
    Path("objective.json").write_text(json.dumps({**config, "model": "", "method": "custom", "custom": f"{name}:rho"}))
    words = [*command.split(), "--device", "cpu"]
    refused = CliRunner().invoke(app, words)
    assert isinstance(refused.exception, InvalidInput)
    assert "names code" in str(refused.exception)
    assert "--trust-code" in str(refused.exception)
    assert not Path("ran").exists()
    if command.startswith(("doctor", "train")):  # quick
        assert CliRunner().invoke(app, [*words, "--trust-code"]).exit_code in (0, 1)
        assert Path("ran").exists()


def test_a_recipe_without_weights_says_what_exists() -> None:
    with pytest.raises(CheckpointError, match=r"recipe 'mnist/ig-sum-norm': available: mnist/ig-sum-norm-tuned;"):
        load_model("mnist/ig-sum-norm")
    with pytest.raises(CheckpointError, match=r"available: fashion-mnist/.*; robattr train mnist/natural trains it"):
        open_run("mnist/natural")


@pytest.mark.parametrize(("old", "new"), sorted(RENAMED.items()))
def test_files_with_an_earlier_name_of_a_network_are_read(old: str, new: str, tmp_path: Path) -> None:
    net = models.architectures[new](3)
    object.__setattr__(net, "spec", models.Spec(old, {"classes": 3}))
    read = load_model(models.save_model(net, tmp_path / "m.safetensors"))
    assert read.spec.name == new
    assert all(torch.equal(a, b) for a, b in zip(read.state_dict().values(), net.state_dict().values(), strict=True))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"method": "audit"}, "is an audit and has no weights of the audited model: use robattr audit"),
        ({"recipe": "harden"}, "use robattr audit FACTORY --weights"),
        ({}, "has no weights yet: finish it with robattr train --out"),
    ],
)
def test_run_directories_that_cannot_be_opened(config: dict[str, str], message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidInput, match=message):
        open_run(tmp_path)


def test_a_weights_file_without_a_dataset(tmp_path: Path) -> None:
    path = models.save_model(models.small_cnn(), tmp_path / "net.safetensors", {"config": "mine"})
    with pytest.raises(InvalidInput, match="does not name the dataset it was trained on: add --data"):
        open_run(path)
    with pytest.raises(InvalidInput, match="'' is neither a dataset nor a folder"):
        open_run(path, dataset="")
    assert open_run(path, dataset="fashion-mini").data.name == "fashion-mini"


def test_the_zoo_names_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    mini = data.load("fashion-mini")
    monkeypatch.setattr("robattr.runs.load_dataset", lambda run, *_: mini)
    assert set(zoo.entries()) <= set(recipes.names())
    for name in zoo.entries():
        config = open_run(name).config
        assert config is not None
        assert (config.recipe, config.model) == (name, recipes.get(name).model)
