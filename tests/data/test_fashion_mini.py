"""The embedded dataset."""

from __future__ import annotations

from pathlib import Path

import pytest

from robattr.data import fashion_mini
from robattr.errors import DataError


def test_embedded_file_is_small_and_checked() -> None:
    packed = Path(fashion_mini.__file__).parent.joinpath("embedded", fashion_mini.FILE).read_bytes()
    assert len(packed) <= 2_500_000
    with pytest.raises(DataError, match="install robattr again"):
        fashion_mini._unpack(packed[:-1000])
    with pytest.raises(DataError, match="install robattr again"):
        fashion_mini._unpack(b"rubbish")
    notice = Path(fashion_mini.__file__).parent.joinpath("embedded", "NOTICE").read_text()
    assert "Zalando" in notice
    assert "MIT" in notice
