"""The datasets by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from robattr import data
from robattr.errors import DataError


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "gtsrb", "flower"])
def test_a_missing_dataset_says_what_to_put_where(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=rf"robattr data fetch {name}") as error:
        data.load(name, tmp_path)
    assert str(tmp_path / name) in str(error.value)
