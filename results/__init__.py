"""The published records, and the renderer of docs/results.md: `python -m results.render`."""
