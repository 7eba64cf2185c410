"""Training: one loop, atomic checkpoints, data-parallel processes, sweeps."""

from robattr.train.loop import Outcome as Outcome
from robattr.train.loop import train as train
from robattr.train.run import Run as Run
