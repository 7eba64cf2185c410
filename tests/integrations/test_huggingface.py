"""Hugging Face's Trainer and Accelerate take the steps of a loop by hand, for images and for tokens."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nets import direction, directional
from robattr import PGD, LinfBall, objectives
from robattr.errors import InvalidInput, UnsupportedModel
from robattr.integrations import rho_of
from train_fixtures import tiny_net, weights

transformers = pytest.importorskip("transformers", reason="pip install transformers accelerate runs these tests")
accelerate = pytest.importorskip("accelerate", reason="pip install accelerate runs these tests")

from robattr.integrations.huggingface import Reading, RobustTrainer, split  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Hugging Face's own, about the machine and about torch
X = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))
Y = torch.arange(8) % 3
IDS = torch.randint(1, 20, (8, 6), generator=torch.Generator().manual_seed(2))
MASK = (torch.arange(6) < torch.tensor([6, 5, 4, 3, 6, 5, 4, 3])[:, None]).long()


@pytest.fixture(autouse=True)
def fresh_state():
    """Accelerate keeps one state per process; each test starts without one."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def vit() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=8, patch_size=4, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def bert() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=3,
        max_position_embeddings=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def rho(bounds=(0.0, 1.0)):
    return objectives.ig_norm(0.5, LinfBall(0.05, bounds), PGD(1, 0.05), m=3, m_attack=2)


def from_sign(bounds=(0.0, 1.0)):
    """The objective from a start that depends on the example alone."""

    def fixed(model, x, y):
        start = x.detach() + 0.02 * torch.sign(torch.sin(37 * x.detach()))
        return rho(bounds)(model, x, y, start=start if bounds is None else start.clamp(*bounds))

    return fixed


def rows(**columns: Tensor) -> list[dict[str, Tensor]]:
    return [{name: column[i] for name, column in columns.items()} for i in range(len(Y))]


def trainer(model: nn.Module, data, folder, *, objective, **settings) -> RobustTrainer:
    args = transformers.TrainingArguments(
        output_dir=str(folder), learning_rate=0.1, optim="sgd", lr_scheduler_type="constant", max_grad_norm=0.0,
        report_to=[], save_strategy="no", logging_steps=1, use_cpu=True, disable_tqdm=True,
        train_sampling_strategy="sequential",
        **{"max_steps": 2, "per_device_train_batch_size": 4, **settings},
    )  # fmt: skip
    return RobustTrainer(model=model, args=args, train_dataset=data, eval_dataset=data, objective=objective)


def test_a_trainer_of_images_takes_the_steps_of_a_loop(tmp_path):
    model = vit()
    mine = deepcopy(model).train()
    optimizer = torch.optim.SGD(mine.parameters(), 0.1)
    for s in (slice(4), slice(4, 8)):
        optimizer.zero_grad()
        from_sign()(lambda z: mine(pixel_values=z).logits, X[s], Y[s]).value.mean().backward()
        optimizer.step()
    run = trainer(model, rows(pixel_values=X, labels=Y), tmp_path, objective=from_sign())
    run.train()
    moved = float((weights(mine) - weights(vit())).norm())
    assert float((weights(model) - weights(mine)).norm()) < 1e-5 * moved
    line = next(record for record in run.state.log_history if "loss" in record)
    assert line["loss"] == pytest.approx(line["clean_loss"] + 0.5 * line["penalty"], rel=1e-3)  # the Trainer rounds
    assert "eval_loss" in run.evaluate()


def test_accumulated_batches_are_a_mean(tmp_path):
    """Two batches of 4, accumulated, are one step on all 8 examples."""
    one, two = vit(), vit()
    data = rows(pixel_values=X, labels=Y)
    whole = trainer(one, data, tmp_path, objective=from_sign(), per_device_train_batch_size=8, max_steps=1)
    parts = trainer(two, data, tmp_path, objective=from_sign(), gradient_accumulation_steps=2, max_steps=1)
    whole.train()
    parts.train()
    moved = float((weights(one) - weights(vit())).norm())
    assert float((weights(one) - weights(two)).norm()) < 1e-5 * moved


def test_tokens_are_attributed_at_their_embeddings_and_the_table_learns():
    """The gradient in all parameters, the embeddings' table included, against central differences in float64.

    x* is a given constant, so that ρ = ℓ(x) + λ ‖IG(x, x*)‖₁ with x = table[ids] is a smooth function of them.
    """
    model = bert().double().train()
    inputs = {"input_ids": IDS, "attention_mask": MASK, "labels": Y}
    given = 0.1 * torch.randn(8, 6, 8, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    still = replace(rho(None), by=PGD(0, 0.0), within=LinfBall(1e6, None))

    def value() -> Tensor:
        y, key, x, others = split(model, inputs)
        assert (key, set(others)) == ("inputs_embeds", {"attention_mask"})
        view = lambda bare: Reading(bare, key, others, batch=8)  # noqa: E731
        return rho_of(lambda m, x, y: still(m, x, y, start=given), model, x, y, view=view).value.mean()

    value().backward()
    table = model.get_input_embeddings().weight
    assert float(table.grad.norm()) > 1e-4
    parameters = [p for p in model.parameters() if p.grad is not None]
    slope = sum(float((p.grad * v).sum()) for p, v in zip(parameters, direction(parameters), strict=True))
    assert directional(value, parameters, h=1e-5) == pytest.approx(slope, rel=1e-6)


def test_padding_has_no_effect():
    model = bert().train()
    short = {"input_ids": IDS[:, :4], "attention_mask": torch.ones(8, 4, dtype=torch.long)}
    mask = (torch.arange(6) < 4).long().expand(8, 6)
    padded = {"input_ids": IDS, "attention_mask": mask}
    found = []
    for inputs in (short, padded):
        _, key, x, others = split(model, {**inputs, "labels": Y})
        z = x.detach().repeat(3, 1, 1)  # three nodes of a path
        found.append(Reading(model.eval(), key, others, batch=8)(z))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_accelerates_mixed_precision_does_not_reach_rho():
    net = tiny_net()
    x, y = torch.rand(6, 1, 6, 6), torch.arange(6) % 3
    expected = from_sign()(net, x, y).penalty
    accelerator = accelerate.Accelerator(mixed_precision="bf16", cpu=True)
    model, _ = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1))
    found = rho_of(from_sign(), model, x, y)
    accelerator.backward(found.value.mean())
    torch.testing.assert_close(found.penalty, expected, rtol=1e-5, atol=1e-7)
    assert all(p.grad is not None for p in net.parameters())


def on_two(folder: Path) -> None:
    """What each of the two processes does: a step of Accelerate's, a refused one, and a step of the Trainer."""
    flexible = accelerate.DistributedDataParallelKwargs(find_unused_parameters=True)
    accelerator = accelerate.Accelerator(cpu=True, kwargs_handlers=[flexible])
    net = tiny_net().double()
    x, y = torch.linspace(0, 1, 8 * 36).reshape(8, 1, 6, 6).double(), Y
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 4)
    model, optimizer, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1), loader)
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(rho_of(from_sign(), model, x, y).value.mean())
        optimizer.step()
    torch.save(weights(net), folder / f"accelerate {accelerator.process_index}.pt")
    with pytest.raises(UnsupportedModel, match="DistributedDataParallelKwargs"):
        rho_of(from_sign(), nn.parallel.DistributedDataParallel(tiny_net()), x, y)
    image = vit()
    trainer(image, rows(pixel_values=X, labels=Y), folder, objective=from_sign(), max_steps=1).train()
    torch.save(weights(image), folder / f"trainer {accelerator.process_index}.pt")


def test_two_processes_train_as_one(two_processes, tmp_path):
    folder = two_processes / "test_huggingface"
    net = tiny_net().double()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x = torch.linspace(0, 1, 8 * 36).reshape(8, 1, 6, 6).double()
    from_sign()(net, x, Y).value.mean().backward()
    optimizer.step()
    image, data = vit(), rows(pixel_values=X, labels=Y)
    trainer(image, data, tmp_path, objective=from_sign(), per_device_train_batch_size=8, max_steps=1).train()
    for name, one, tolerance in (("accelerate", weights(net), 1e-12), ("trainer", weights(image), 1e-6)):
        first, second = (torch.load(folder / f"{name} {rank}.pt") for rank in (0, 1))
        assert torch.equal(first, second)
        assert float((first - one).norm() / one.norm()) < tolerance


@pytest.mark.parametrize(
    ("batch", "said"), [({"pixel_values": X}, "expected `labels`"), ({"labels": Y, "image": X}, "expected one of")]
)
def test_a_batch_without_labels_or_inputs_is_refused(batch, said):
    with pytest.raises(InvalidInput, match=said):
        split(vit(), batch)
