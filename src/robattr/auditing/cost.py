"""What a training step and an audit will cost, extrapolated from a few examples.

second-order passes per example and step = attack_steps · m_attack + m
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from robattr.attacks.maps import integrated_gradients
from robattr.auditing.arithmetic import choose_directions
from robattr.auditing.wrapped_model import WrappedModel
from robattr.engine.batch_size import bytes_per_row
from robattr.evaluation import protocol as protocols
from robattr.evaluation.cost import SECOND_ORDER, attack_passes, compilation_pays, compiled_seconds, pace, shared_passes
from robattr.evaluation.diagnostics import curve_passes
from robattr.evaluation.scores import PROBED
from robattr.evaluation.suite import attribution_attacks

SHARE = 0.6  # of the memory, for the nodes of the path


@dataclass(frozen=True)
class Plan:
    """The training step whose cost is estimated."""

    m: int = 10
    m_attack: int = 5
    attack_steps: int = 7
    batch: int = 16

    @property
    def passes(self) -> int:
        """Second-order passes of one step. A large batch on a GPU takes less than as many single ones."""
        return (self.attack_steps * self.m_attack + self.m) * self.batch


def peak_bytes(model: WrappedModel, x: Tensor, plan: Plan) -> int:
    """Bytes of memory of one training step."""
    fixed = 4 * sum(p.numel() * p.element_size() for p in model.parameters())  # weights, gradient, Adam's two moments
    return fixed + bytes_per_row(model, x) * plan.batch * max(plan.m, plan.m_attack)


def audit_estimate(
    model: WrappedModel,
    x: Tensor,
    y: Tensor,
    protocol: protocols.Protocol,
    *,
    examples: int,
    per_pass: float | None = None,
) -> tuple[float, float]:
    """`audit_seconds` of a model, measured at x, in the precision in use and the one that the directions would have.

    per_pass   seconds of a pass of the model, where they were measured before: on a CPU it is not timed again
    """
    attack = attribution_attacks(protocol, model, integrated_gradients(protocol.N), images=x.dim() == 4)[0]
    directions, _ = choose_directions([attack], x, y)
    found = pace(replace(attack, directions=directions), x, y, known=per_pass)
    return audit_seconds(found, protocol, examples=examples, on_gpu=model if x.is_cuda else None)


def audit_seconds(
    per_pass: float, paper: protocols.Protocol, *, examples: int, on_gpu: nn.Module | None = None
) -> tuple[float, float]:
    """Seconds of an audit by the protocol `paper` alone, and by both protocols.

    A protocol attacks all examples, and some of them again for the curve over ε. `strict` has the attack and the noise
    of `paper`, which both together run once. `on_gpu`: the model, whose attacks are compiled there where that pays.
    """
    map = integrated_gradients(paper.N)

    def passes(protocol: protocols.Protocol) -> int:
        attacks = attribution_attacks(protocol, nn.Flatten(), map, images=True)
        curve = min(PROBED, examples) * curve_passes(attacks[0])
        return examples * attack_passes(protocol, attacks, images=True) + curve

    def seconds(passes: int) -> float:
        found = per_pass / SECOND_ORDER * passes
        return compiled_seconds(on_gpu, found) if on_gpu and compilation_pays(on_gpu, found) else found

    once = examples * shared_passes(attribution_attacks(paper, nn.Flatten(), map, images=True)[0])
    alone = seconds(passes(paper))
    return alone, alone + seconds(passes(protocols.strict(paper)) - once)


def chunk_that_fits(model: WrappedModel, x: Tensor, *, m: int, batch: int) -> int | None:
    """How many nodes of a batch fit in memory together; None where all m do."""
    fits = int(SHARE * memory(x.device)) // (bytes_per_row(model, x) * batch)
    return None if fits >= m else max(1, fits)


def memory(device: torch.device) -> int:
    """Bytes of memory of the device."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return 8 * 2**30
