"""Cards say what the run's files say: data, recipe, measurements, licence, hash."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from robattr.attacks import integrated_gradients
from robattr.cli import app
from robattr.errors import CheckpointError, InvalidInput
from robattr.evaluation import OutputDir, evaluate, scaled
from robattr.models import load_weights, save_model, zoo
from robattr.reporting import model_card, read_run
from robattr.training import train
from train_fixtures import QUICK, tiny_data, tiny_net


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with one evaluation."""
    path, data, net = tmp_path_factory.mktemp("card") / "run", tiny_data(), tiny_net()
    train(QUICK, path, dataset=data, model=net, device="cpu")
    few = replace(scaled("tiny", pixels=36, bounds=data.bounds, eps=0.05), steps=2, pgd_steps=2, N=3)
    evaluate(
        net.eval(), data.pixels(data.test.images), data.test.labels,
        protocol=few, map=integrated_gradients(3), out=OutputDir(path / "records"),
    )  # fmt: skip
    return path


def test_the_card_has_data_recipe_numbers_licence_and_hash(trained):
    text = model_card(trained, license="apache-2.0")
    (e,) = read_run(trained).evaluations
    digest = hashlib.sha256((trained / "model.safetensors").read_bytes()).hexdigest()
    topk = e.column("topk")
    shown = f"{100 * topk['value']:.2f}% [{100 * topk['low']:.1f}, {100 * topk['high']:.1f}]"
    row = "| paper, ig maps | 0.05 (inputs from 0 to 1) | 9 |"
    for said in ("# NATURAL, tiny", "- steps: `6`", "- eps: `0.1`", row, shown, digest):
        assert said in text
    assert "Weights: apache-2.0." in text
    assert "log_every" not in text
    assert str(trained.parent) not in text


def test_the_card_names_the_version_of_the_protocol_and_the_doubts(trained):
    run = read_run(trained)
    (e,) = run.evaluations
    settings = {**e.summary["settings"], "version": 2}
    doubted = replace(e, summary={**e.summary, "settings": settings, "alarms": ["noise is stronger"]})
    text = model_card(replace(run, evaluations=(doubted,)))
    assert "| paper v2, ig maps |" in text
    assert "\nWarning (paper v2, ig maps): noise is stronger.\n" in text
    assert "weaker attack" not in text
    old = replace(doubted, summary={**doubted.summary, "protocol": "strict"})
    assert "\nWarning (strict v2, ig maps): measured by strict v2, a weaker attack than strict v" in model_card(
        replace(run, evaluations=(old,))
    )


def test_the_front_matter_is_yaml_with_every_measured_column(trained):
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml runs this test")
    front = yaml.safe_load(re.fullmatch(r"---\n(.*?)\n---\n.*", model_card(trained), flags=re.S)[1])
    assert (front["license"], front["library_name"]) == ("unknown", "robattr")
    (result,) = front["model-index"][0]["results"]
    values = {metric["type"]: metric["value"] for metric in result["metrics"]}
    summary = json.loads((trained / "records" / "paper-ig.json").read_text())
    assert values["kendall"] == summary["columns"]["kendall"]["value"]
    assert {"nat_acc", "adv_acc", "topk", "never_kept", "noise_topk"} <= set(values)


def test_the_hub_reads_the_card(trained):
    hub = pytest.importorskip("huggingface_hub", reason="pip install huggingface_hub runs this test")
    card = hub.ModelCard(model_card(trained, license="mit"))
    assert card.data.license == "mit"
    assert {result.metric_type for result in card.data.eval_results} >= {"topk", "kendall"}


def test_a_run_without_measurements_says_so(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("records"))
    assert "Not measured yet" in model_card(run)


def test_a_folder_of_data_is_named_without_its_path_and_preprocessing_is_told(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "dataset": "/home/me/secret/photos"}))
    (run / "preprocessing.json").write_text('{"mean": [0.5], "std": [0.25]}')
    text = model_card(run)
    assert "`photos`" in text
    assert "secret" not in text
    assert "mean [0.5] and std [0.25]" in text


def test_measurements_of_other_weights_are_refused(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    net = load_weights(tiny_net(), run / "model.safetensors")
    with torch.no_grad():
        net[0].bias += 1e-3
    save_model(net, run / "model.safetensors")
    with pytest.raises(CheckpointError, match="was measured on other weights"):
        model_card(run)


def test_the_command_writes_the_card(trained, tmp_path):
    file = tmp_path / "card.md"
    done = CliRunner().invoke(app, ["card", str(trained), "-o", str(file), "--license", "mit"])
    assert done.output == f"wrote {file}\n"
    assert file.read_text("utf-8") == model_card(trained, license="mit")


def test_a_model_of_the_zoo_has_its_card(tmp_path):
    card = zoo.entries()["gtsrb/ig-sum-norm-tuned"].card.read_text("utf-8")
    shown = CliRunner().invoke(app, ["card", "gtsrb/ig-sum-norm-tuned"])
    assert shown.output == f"{card}\n"
    file = tmp_path / "card.md"
    assert CliRunner().invoke(app, ["card", "gtsrb/ig-sum-norm-tuned", "-o", str(file)]).output == f"wrote {file}\n"
    assert file.read_text("utf-8") == card
    wrong = CliRunner().invoke(app, ["card", "gtsrb/ig-sumnorm-tuned"])
    assert isinstance(wrong.exception, InvalidInput)
    assert "did you mean 'gtsrb/ig-sum-norm-tuned'" in str(wrong.exception)


def test_an_unfinished_run_has_no_card(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="only a finished training has a card"):
        model_card(tmp_path)
