"""Fixtures of the tests that fetch."""

from download_fixtures import server as server
from download_fixtures import tiny_mnist as tiny_mnist
