"""Training: one loop, atomic checkpoints, data-parallel processes, sweeps."""

from robattr.train.run import Run as Run
