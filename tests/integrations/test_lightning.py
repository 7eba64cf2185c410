"""A LightningModule with two more lines trains ρ: the same weights as a loop by hand, on one process and on two."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from robattr import PGD, LinfBall, objectives
from robattr.errors import InvalidInput, UnsupportedModel
from train_fixtures import tiny_data, tiny_net, weights

L = pytest.importorskip("lightning.pytorch", reason="pip install lightning runs these tests")

from robattr.integrations.lightning import AttributionMonitor, RobustTraining  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own, about the machine and about torch


class Net(RobustTraining, L.LightningModule):
    def __init__(self, objective, net: nn.Module) -> None:
        super().__init__()
        self.objective, self.net = objective, net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def examples() -> tuple[Tensor, Tensor]:
    data = tiny_data()
    return data.pixels(data.train.images[:12]), data.train.labels[:12]


def fixed(model, x, y):
    """IG-NORM from a start that depends on the example alone, not on a random generator or on its batch."""
    rho = objectives.ig_norm(0.5, LinfBall(0.1), PGD(2, 0.05), m=3, m_attack=2)
    return rho(model, x, y, start=(x + 0.05 * torch.sign(x - 0.5)).clamp(0, 1))


def fit(model: L.LightningModule, folder: Path, *, batch: int = 4, **settings) -> L.Trainer:
    x, y = examples()
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", default_root_dir=folder, **{**quiet, "devices": 1, **settings})
    trainer.fit(model, DataLoader(TensorDataset(x, y), batch), DataLoader(TensorDataset(x, y), 12))
    return trainer


def by_hand(net: nn.Module, *, batch: int = 4) -> Tensor:
    """The same training as a loop."""
    model = Net(fixed, deepcopy(net)).train()
    optimizer = model.configure_optimizers()
    for x, y in zip(*(part.split(batch) for part in examples()), strict=True):
        optimizer.zero_grad()
        fixed(model, x, y).value.mean().backward()
        optimizer.step()
    return weights(model)


def test_a_trainer_takes_the_steps_of_a_loop_and_logs_the_parts(tmp_path):
    net = tiny_net(norm=True)
    expected = by_hand(net)
    trainer = fit(Net(fixed, net), tmp_path)
    assert torch.equal(weights(net), expected)
    logged = trainer.logged_metrics
    assert {"rho", "loss", "penalty", "val_loss"} <= set(logged)
    assert logged["rho"] == pytest.approx(float(logged["loss"] + 0.5 * logged["penalty"]), rel=1e-5)


def test_mixed_precision_leaves_rho_in_float32(tmp_path):
    net = tiny_net()
    expected = by_hand(net)
    fit(Net(fixed, net), tmp_path, precision="bf16-mixed")
    assert torch.equal(weights(net), expected)


def on_two(folder: Path) -> None:
    """What each of the two processes does: one step on all examples, six on each process."""
    net = tiny_net()
    strategy = L.strategies.DDPStrategy(process_group_backend="gloo", find_unused_parameters=True)
    trainer = fit(Net(fixed, net), folder, batch=6, strategy=strategy, devices=2)
    torch.save(weights(net), folder / f"{trainer.global_rank}.pt")


def test_two_processes_train_as_one(two_processes):
    """In an order that Lightning shuffles: sums in another order differ by units of rounding."""
    folder, expected = two_processes / "test_lightning", by_hand(tiny_net(), batch=12)
    first, second = (torch.load(folder / f"{rank}.pt") for rank in (0, 1))
    assert torch.equal(first, second)
    assert float((first - expected).norm() / expected.norm()) < 1e-6


@pytest.mark.parametrize("strategy", ["ddp", "ddp_find_unused_parameters_false"])
def test_a_strategy_that_would_lose_gradients_is_refused(tmp_path, strategy):
    with pytest.raises(UnsupportedModel, match='strategy="ddp_find_unused_parameters_true"'):
        fit(Net(fixed, tiny_net()), tmp_path, strategy=strategy)


def test_an_objective_with_a_state_is_refused(tmp_path):
    rho = objectives.distributional(objectives.spread(2), 0.1, objectives.shift(), PGD(1, 0.1))
    with pytest.raises(InvalidInput, match="whose γ these checkpoints would not keep"):
        fit(Net(rho, tiny_net()), tmp_path)


def test_a_missing_objective_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="objective"):
        fit(Net(None, tiny_net()), tmp_path)


def test_the_monitor_logs_what_the_metric_says(tmp_path):
    from robattr.auditing import AttributionRobustness

    x, y = examples()
    net = tiny_net()
    trainer = fit(Net(fixed, net), tmp_path, callbacks=[AttributionMonitor(x, y, eps=0.05, steps=2)])
    scores = AttributionRobustness(eps=0.05, steps=2)(model=net, x_batch=x, y_batch=y)
    assert float(trainer.logged_metrics["attribution_kendall"]) == pytest.approx(float(torch.tensor(scores).nanmean()))
    assert all(p.requires_grad for p in net.parameters())
