"""The benchmark of the forms of operators runs, and its rows agree."""

from __future__ import annotations

import pytest

from benchmarks import forms


@pytest.mark.inductor
def test_a_step_of_torchs_kernels_has_the_gradients_of_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert forms.main(["--network", "mini", "--quick", "--precision", "fp32", "--row", "first"]) == 0
    row = [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].split("|") if cell.strip()]
    assert row[0] == "first"
    assert float(row[1]) > 0
    assert float(row[4]) < 1e-3
