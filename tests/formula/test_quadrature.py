"""Rules are data: their properties are those of the textbook."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robattr import Rule, gauss_legendre, left, midpoint, radau, right
from robattr.errors import InvalidInput

FAMILIES = {"left": left, "right": right, "midpoint": midpoint, "gauss_legendre": gauss_legendre, "radau": radau}


@given(family=st.sampled_from(sorted(FAMILIES)), m=st.integers(1, 100))
def test_weights_sum_to_one_and_nodes_are_ordered_inside(family: str, m: int) -> None:
    rule = FAMILIES[family](m)
    assert len(rule) == m
    assert sum(rule.weights) == pytest.approx(1.0, abs=1e-12)
    assert all(w > 0 for w in rule.weights)
    assert all(a < b for a, b in zip(rule.nodes, rule.nodes[1:], strict=False))
    assert rule.nodes[0] >= 0.0
    assert rule.nodes[-1] <= 1.0


def test_the_nodes_of_the_paper_and_of_the_reference() -> None:
    assert left(4).nodes == (0.0, 0.25, 0.5, 0.75)
    assert right(4).nodes == (0.25, 0.5, 0.75, 1.0)
    assert midpoint(4).nodes == (0.125, 0.375, 0.625, 0.875)


@given(m=st.integers(1, 12), degree=st.integers(0, 23))
def test_gauss_legendre_is_exact_to_degree_2m_minus_1(m: int, degree: int) -> None:
    rule = gauss_legendre(m)
    value = sum(w * t**degree for t, w in zip(rule.nodes, rule.weights, strict=True))
    if degree <= 2 * m - 1:
        assert value == pytest.approx(1.0 / (degree + 1), abs=1e-13)
    elif degree == 2 * m:
        assert value != pytest.approx(1.0 / (degree + 1), abs=1e-18)


@given(m=st.integers(1, 12), degree=st.integers(0, 23))
def test_radau_is_exact_to_degree_2m_minus_2_and_ends_at_one(m: int, degree: int) -> None:
    rule = radau(m)
    assert rule.nodes[-1] == 1.0
    value = sum(w * t**degree for t, w in zip(rule.nodes, rule.weights, strict=True))
    if degree <= 2 * m - 2:
        assert value == pytest.approx(1.0 / (degree + 1), abs=1e-12)
    elif degree == 2 * m - 1:
        assert value != pytest.approx(1.0 / (degree + 1), abs=1e-18)


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("m", [0, -3, 2.5, True, "10"])
def test_a_rule_refuses_a_bad_m(family: str, m: object) -> None:
    with pytest.raises(InvalidInput, match="m ≥ 1"):
        FAMILIES[family](m)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "weights", "why"),
    [((), (), "at least one"), ((0.5,), (0.5, 0.5), "as many"), ((1.5,), (1.0,), r"\[0, 1\]"), ((0.5,), (0.9,), "sum")],
)
def test_a_rule_refuses_what_is_no_rule(nodes: tuple[float, ...], weights: tuple[float, ...], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        Rule(nodes, weights)
