"""Data-parallel training under `torchrun`: the batch is cut into slices, gradients are summed by one `all_reduce`.

Nothing wraps the model, so nothing stands between it and its second derivative. What a step computes does not
depend on the number of processes: each reads the same global batch, draws the same global noise, and takes
its own slice of both.
"""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.rendezvous import rendezvous

from robattr.engine.seeds import generator
from robattr.errors import InvalidInput
from robattr.formula.neighbourhoods import Rand as Rand

STARTS, LAYERS = 3, 4  # streams of the run's seed, after those of the batches; one of LAYERS per process


@dataclass(frozen=True)
class World:
    """This process among `size` of them; alone, every operation is the identity."""

    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def share(self, batch: int) -> slice:
        """This process's examples of a global batch; slices differ by at most one example, and none is empty."""
        if batch < self.size:
            raise InvalidInput(
                f"a batch of {batch} cannot be shared among {self.size} processes: raise batch, or start fewer"
            )
        return slice(self.rank * batch // self.size, (self.rank + 1) * batch // self.size)

    def rand(self, batch: int, *, seed: int, step: int) -> Rand:
        """Like `torch.rand_like` for this process's slice of a batch, cut from noise drawn for the global one."""
        seeded = generator(seed, STARTS, step).initial_seed()  # one stream per device type, wherever it is drawn
        source = torch.Generator(self.device).manual_seed(seeded)
        share = self.share(batch)

        def draw(x: Tensor) -> Tensor:
            shape = (batch, *x.shape[1:])
            return torch.rand(shape, generator=source, dtype=x.dtype, device=self.device)[share]

        return draw

    def seed_layers(self, *, seed: int, step: int) -> None:
        """Seed the random numbers of layers (dropout) by (seed, step, rank)."""
        torch.manual_seed(generator(seed, LAYERS + self.rank, step).initial_seed())

    def total(self, values: Tensor) -> Tensor:
        """The sum of `values` over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def wait(self) -> None:
        """Wait until every process is here."""
        if self.size > 1:
            dist.barrier()

    def from_leader(self, content: bytes | None) -> bytes:
        """The leader's `content`, on every process: only the leader needs to reach the run directory."""
        held = [content]
        if self.size > 1:
            dist.broadcast_object_list(held, src=0, device=self.device)
        assert held[0] is not None
        return held[0]


_joins = itertools.count()  # of this process: the same number in all


@contextmanager
def join(device: str = "auto") -> Iterator[World]:
    """The processes that `torchrun` started (gloo on CPUs, nccl on GPUs), or this one alone.

    A process group that the caller has already made is used and left as it is.
    """
    made = dist.is_available() and dist.is_initialized()
    asked = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    rank, size = (dist.get_rank(), dist.get_world_size()) if made else asked
    place = choose_device(device, local_rank=int(os.environ.get("LOCAL_RANK", "0")), alone=size == 1)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if size == 1 or made:
        yield World(rank, size, place)
        return
    # Imported under a group, as the first step of an optimizer would, it keeps the group in defaults of its functions;
    # the group's threads then outlive `destroy_process_group`, and one that wakes at the very end aborts the process.
    importlib.import_module("torch._dynamo")
    # torchrun keeps one store across restarts and joins: without a prefix, processes would find the addresses of dead
    # workers and of the group before.
    store, rank, size = next(rendezvous("env://"))
    fresh = dist.PrefixStore(f"attempt-{restarts()}-{next(_joins)}", store)  # type: ignore[attr-defined]
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo", store=fresh, rank=rank, world_size=size)
    try:
        yield World(rank, size, place)
    finally:
        dist.destroy_process_group()


def choose_device(name: str, *, local_rank: int = 0, alone: bool = True) -> torch.device:
    """`auto` is the GPU if there is one; among several processes of a machine, each takes its own."""
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    except (RuntimeError, TypeError) as error:
        raise InvalidInput(f"unknown device {name!r}: expected auto, cpu, cuda, cuda:1 or mps") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidInput(f"device {name!r} was asked for, but torch finds no CUDA GPU here: use --device cpu")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise InvalidInput(f"device {name!r} was asked for, but torch finds none here: use --device cpu")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device() if alone else local_rank)
    if device.type == "cuda" and device.index is not None and device.index >= torch.cuda.device_count():
        raise InvalidInput(f"there is no GPU {device.index}: this machine has {torch.cuda.device_count()}")
    return device


def restarts() -> int:
    """How often `torchrun` has restarted its workers after one was lost; the run then continues by itself."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
