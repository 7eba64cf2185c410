"""Inline charts against matplotlib's statistics."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.cbook import boxplot_stats

from robattr.reporting import svg
from robattr.reporting.curves import COLOURS, DASHES, Series


def test_boxes_equal_matplotlibs() -> None:
    values = np.random.default_rng(0).standard_t(2, 300)
    ours, theirs = svg.box_of(values), boxplot_stats(values)[0]
    assert ours is not None
    assert (ours.low, ours.q1, ours.median, ours.q3, ours.high) == pytest.approx(
        [theirs[key] for key in ("whislo", "q1", "med", "q3", "whishi")]
    )
    np.testing.assert_allclose(ours.beyond, np.sort(theirs["fliers"]))
    assert svg.box_of([float("nan")]) is None


@pytest.mark.parametrize(
    ("low", "high", "log", "expected"),
    [
        (0.0, 1.0, False, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-0.2, 1.0, False, [0, 0.25, 0.5, 0.75, 1.0]),
        (0.5, 4.0, True, [0.5, 1, 2]),
        (1e-4, 1e1, True, [1e-4, 1e-2, 1]),
    ],
)
def test_axes_have_round_ticks_inside_the_range(low: float, high: float, log: bool, expected: list[float]) -> None:
    axis = svg.Axis(low, high, 0, 100, log=log)
    assert axis.ticks() == pytest.approx(expected)
    assert (axis(low), axis(high)) == pytest.approx((0, 100))


def test_charts_leave_out_what_cannot_be_drawn_and_escape_names() -> None:
    series = Series("<b>", [0, 1, 2, 3], [float("nan"), 0.0, 2.0, 3.0], 0)
    drawn = svg.line_chart([series], x_label="x", y_label="y", log=True)
    assert len(re.search(r'points="([^"]*)"', drawn).group(1).split()) == 2  # type: ignore[union-attr]
    assert "<b>" not in drawn
    assert svg.line_chart([], x_label="x", y_label="y") == ""
    assert "no scores" in svg.box_plot([("a", [], 0)], label="l", low=0, high=1)


def test_long_names_and_numbers_stay_inside_the_chart() -> None:
    drawn = svg.box_plot([("IG-SUM-NORM, avgpool_cnn, seed = 1", [0.1, 0.2], 0)], label="l", low=0, high=1)
    texts = {text: float(y) for y, text in re.findall(r'<text[^>]* x="112" y="([\d.]+)"[^>]*>([^<]*)<', drawn)}
    assert list(texts) == ["IG-SUM-NORM", "avgpool_cnn", "seed = 1"]
    assert len(set(texts.values())) == 3
    steps = svg.line_chart([Series("a", [0, 250_000], [0, 1], 0)], x_label="x", y_label="y")
    middle = float(re.search(r'x="([\d.]+)" y="[\d.]+" text-anchor="middle">250,000<', steps).group(1))  # type: ignore[union-attr]
    assert middle + len("250,000") / 2 * 7 <= svg.WIDTH


def test_every_dash_has_a_rule_in_the_style_sheet() -> None:
    assert [svg.css_class(style) for style in (3, 3 + COLOURS, 3 + 2 * COLOURS)] == ["s3", "s3 d1", "s3 d2"]
    style = (Path(svg.__file__).parent / "page" / "page.css").read_text(encoding="utf-8")
    for dash in range(1, DASHES):
        assert f".line.d{dash} " in style
        assert f".swatch.d{dash} " in style
