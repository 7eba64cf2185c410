"""Every named objective with generated code on the CPU, against the plain formula: `make compiled`, some minutes.

`make test` runs the same functions as traced graphs, and inductor on one of them (`test_real_kernels_on_a_cpu`).
"""

from __future__ import annotations

import shutil
from typing import get_args

import pytest
import torch
from torch import nn
from torch._inductor import config as inductor

from nets import NETS, assert_rounding, images, step_of
from robattr import APGD, PGD, LinfBall, averaged, objectives
from robattr.engine import Step
from robattr.formula.distributional import Distributional
from robattr.formula.objective import Joint, Robust
from robattr.training.config import TrainConfig
from robattr.training.methods import Method

pytestmark = [
    pytest.mark.inductor,
    pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler on a CPU"),
]


def plain_net() -> nn.Module:
    """Without a max-pool, which has no interval bound."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 3))


SMALL = {"eps": 0.2, "attack_steps": 2, "step_size": 0.1, "m": 3, "m_attack": 2, "weight": 0.5, "budget": 1.0, "k": 5}
OBJECTIVES = {method: TrainConfig(method=method, **SMALL).objective() for method in get_args(Method)}
OBJECTIVES["r2et with curvature"] = objectives.r2et(0.5, 5, smoothness=0.1)
OBJECTIVES["lga, mean of draws"] = averaged(objectives.lga(0.01, 0.5, LinfBall(0.1)), 2)
OBJECTIVES["two adversaries"] = objectives.trades(2.0, LinfBall(0.2), PGD(2, 0.1)) + objectives.ig_norm(
    0.5, LinfBall(0.1), APGD(2, 0.1), m=2, m_attack=2
)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_generated_code_is_the_formula(name: str) -> None:
    """Value, x* and ∂θ; a compilation that falls back warns, which is an error in tests."""
    given = OBJECTIVES[name]
    rho = given.lagrangian if isinstance(given, Distributional) else given
    assert isinstance(rho, Robust | Joint)
    net = (plain_net if name == "interval-bound" else NETS["softplus"])().double()
    x, _, y = images()
    start = rho.start(x)
    fast = Step(net, compiled=True)
    for _ in range(2):  # the first call compiles and compares; the second runs the generated code alone
        with inductor.patch(compile_threads=1):  # workers would each import torch
            (a, ours), (b, theirs) = (step_of(step, rho, x, y, start) for step in (fast, Step(net)))
        assert_rounding([a.value], [b.value])
        assert_rounding([a.worst], [b.worst])
        assert_rounding(ours, theirs)
    (plan,) = fast._plans.values()
    assert not fast.notes
    assert not any(part.fell_back for part in plan._compiled)
    assert plan._compiled[-1].seconds > 0
    assert torch.isfinite(a.value).all()
