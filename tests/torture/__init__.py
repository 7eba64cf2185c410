"""Torture: kills, faults, bad input and load, for minutes; `make torture` runs it, the suite does not."""
