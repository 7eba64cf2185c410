"""Training: one loop, atomic checkpoints, data-parallel processes, sweeps."""

from robattr.training.config import TrainConfig as TrainConfig
from robattr.training.loop import Outcome as Outcome
from robattr.training.loop import train as train
from robattr.training.sweep import sweep as sweep
