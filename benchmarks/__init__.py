"""Speed of robattr against an eager PyTorch port of the reference code: `make bench`, `python -m benchmarks`."""
