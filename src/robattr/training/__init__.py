"""Training: one loop, atomic checkpoints, data-parallel processes, sweeps."""

from typing import TYPE_CHECKING

from robattr._lazy import lazy

if TYPE_CHECKING:
    from robattr.training.config import TrainConfig as TrainConfig
    from robattr.training.loop import Outcome as Outcome
    from robattr.training.loop import train as train
    from robattr.training.sweep import sweep as sweep

lazy(
    __name__,
    config="TrainConfig",
    loop="Outcome train",
    sweep="sweep",
)
