"""The benchmark: the engine beside the obvious eager port of the reference, in one run, on numbers that agree."""
