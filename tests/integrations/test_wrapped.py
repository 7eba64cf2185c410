"""Two processes under DistributedDataParallel give the gradient of one, also for a loss of attributions alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from robattr import PGD, LinfBall, objectives
from robattr.errors import UnsupportedModel
from robattr.formula import Robust
from robattr.integrations import rho_of
from train_fixtures import tiny_net


def nothing(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """ℓ = 0, so that ρ is the attribution term alone."""
    return x.new_zeros(len(x))


def ig_norm(**settings) -> Robust:
    ball = LinfBall(0.1)
    return objectives.ig_norm(1.0, ball, PGD(2, 0.05), m=4, m_attack=2, **settings)


def ig_only(**settings) -> Robust:
    whole = ig_norm(**settings)
    return Robust(whole.change, whole.within, whole.by, whole.weight, whole.attacked, loss=nothing)


CASES = {"ig-norm": ig_norm(), "ig-only": ig_only(), "ig-only chunked": ig_only(chunk=2), "madry": objectives.madry(
    LinfBall(0.1), PGD(2, 0.05)
)}  # fmt: skip


class Fixed:
    """The objective with the start that does not depend on how the batch is shared."""

    def __init__(self, rho: Robust) -> None:
        self.rho = rho

    def __call__(self, model, x, y):
        return self.rho(model, x, y, start=(x + 0.05 * torch.sign(x - 0.5)).clamp(0, 1))


def batch() -> tuple[Tensor, Tensor]:
    x = torch.rand(8, 1, 6, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return x, torch.arange(8) % 3


def gradient(model: nn.Module) -> Tensor:
    return torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in model.parameters()])


def on_two(folder: Path) -> None:
    """What each of the two processes does."""
    rank = torch.distributed.get_rank()
    x, y = (part[4 * rank : 4 * rank + 4] for part in batch())
    for name, rho in CASES.items():
        model = DistributedDataParallel(tiny_net().double(), find_unused_parameters=True)
        for _ in range(2):  # the second pass meets what the first one left in the reducer
            model.zero_grad()
            rho_of(Fixed(rho), model, x, y).value.mean().backward()
        torch.save(gradient(model), folder / f"{name} {rank}.pt")


def test_two_processes_have_the_gradient_of_one(two_processes):
    """In float64, so that 1e-10 is far above rounding and far below one missing or doubled term."""
    folder = two_processes / "test_wrapped"
    x, y = batch()
    for name, rho in CASES.items():
        model = tiny_net().double()
        Fixed(rho)(model, x, y).value.mean().backward()
        one = gradient(model)
        first, second = (torch.load(folder / f"{name} {rank}.pt") for rank in (0, 1))
        assert float(one.norm()) > 1e-3
        assert torch.equal(first, second), name
        assert float((first - one).norm() / one.norm()) < 1e-10, name


@pytest.mark.parametrize("wrong", [{}, {"static_graph": True}])
def test_a_wrapper_that_would_lose_gradients_is_refused(tmp_path, wrong):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    model = DistributedDataParallel(tiny_net(), **wrong)
    with pytest.raises(UnsupportedModel, match=r"find_unused_parameters=True and static_graph=False"):
        rho_of(ig_only(), model, *batch())


def test_a_sharded_model_is_refused():
    class FullyShardedDataParallel(nn.Module):
        pass

    model = nn.Sequential(FullyShardedDataParallel(), nn.Linear(2, 2))
    with pytest.raises(UnsupportedModel, match=r"got a sharded model \(FullyShardedDataParallel\)"):
        rho_of(ig_only(), model, *batch())


def test_mixed_precision_does_not_reach_rho():
    model = tiny_net()
    x, y = (part.float() if part.is_floating_point() else part for part in batch())
    expected = Fixed(ig_norm())(model, x, y)
    with torch.autocast("cpu", torch.bfloat16):
        found = rho_of(Fixed(ig_norm()), model, x, y)
    assert torch.equal(found.penalty, expected.penalty)
    found.value.mean().backward()
    assert float(gradient(model).norm()) > 1e-3


def test_a_view_makes_logits_of_another_output():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = tiny_net()

        def forward(self, *, pixels: Tensor) -> dict[str, Tensor]:
            return {"logits": self.net(pixels)}

    model, (x, y) = Named().double(), batch()
    found = rho_of(Fixed(ig_norm()), model, x, y, view=lambda bare: lambda z: bare(pixels=z)["logits"])
    torch.testing.assert_close(found.penalty, Fixed(ig_norm())(model.net, x, y).penalty, rtol=1e-10, atol=0)
