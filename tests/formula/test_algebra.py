"""What composes, and what is refused with what was expected and an example."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from nets import mlp
from robattr import (
    IG,
    PGD,
    BaselineIG,
    Distance,
    Gradient,
    LinfBall,
    Robust,
    Size,
    cosine,
    frozen,
    l1,
    l2,
    midpoint,
    objectives,
    pearson,
)  # fmt: skip
from robattr.errors import InvalidInput, brief

BALL, BY = LinfBall(0.1, bounds=None), PGD(1, 0.05)
X, Y = torch.rand(4, 6, generator=torch.Generator().manual_seed(0)), torch.arange(4) % 3


def energy(a: Tensor) -> Tensor:
    return a.square().sum(1)


def apart(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).abs().sum(1)


def test_a_plain_function_is_a_size_or_a_distance_by_its_arguments() -> None:
    ig, maps = IG(rule=midpoint(2)), BaselineIG(IG(rule=midpoint(2)))
    assert energy @ ig == Size(energy) @ ig
    assert apart @ maps == Distance(apart) @ maps
    assert energy @ frozen(maps) == Size(energy) @ frozen(maps)


def test_distances_add_up_and_scale() -> None:
    a, b = torch.rand(3, 5), torch.rand(3, 5)
    expected = cosine(a, b) + 2 * pearson(a, b) - apart(a, b) / 2
    torch.testing.assert_close((cosine + 2 * pearson - Distance(apart) / 2)(a, b), expected)
    torch.testing.assert_close(sum([cosine, pearson])(a, b), cosine(a, b) + pearson(a, b))
    assert repr(cosine + 2 * pearson) == "cosine + 2 * (pearson)"


@pytest.mark.parametrize(
    ("compose", "words"),
    [
        (lambda: 3 @ IG(), r"`s @ attribution` expects a size such as l1, .*got 3"),
        (lambda: IG() @ l1, r"expects the size on the left, as in l1 @ IG\(\), got IG\(.* @ l1"),
        (lambda: l1 @ l2, r"`l1 @ a` expects an attribution such as IG\(\).*got l2"),
        (lambda: l1 @ IG, r"`l1 @ a` expects an attribution such as IG\(\).*got <class '.*IG'>"),
        (lambda: cosine @ Gradient, r"`cosine @ a` expects an attribution such as IG\(\).*got <class '.*Gradient'>"),
        (lambda: cosine @ (Gradient(), l1), r"or a pair \(attribution, reference\).*"),
        (lambda: IG() + IG(), r"measured before it is added or scaled, as in 0.1 \* \(l1 @ IG\(\)\)"),
        (lambda: 2 * Gradient(), r"measured before it is added or scaled.* and 2"),
        (lambda: cosine + l1, r"`\+` of a distance expects another distance, such as cosine \+ 2 \* pearson, got l1"),
        (lambda: l1 - cosine, r"`-` of a size expects another size, such as l1 \+ 2 \* l2, got cosine"),
        (lambda: cosine * cosine, r"`\*` of a distance expects a finite number, as in 2 \* distance, got cosine"),
        (lambda: l1 / 0, r"`/` of a size expects a finite number other than 0, as in size / 2, got 0"),
        (lambda: 2 * objectives.natural(), r"an objective is not scaled.*weight=2"),
        (lambda: Robust(l1, BALL, BY), r"expected a change such as l1 @ IG\(\) as `change`, got l1"),
        (lambda: Robust(l1 @ IG(), BALL, BY, attacked=3), r"expected a change such as .* as `attacked`, got 3"),
        (lambda: Robust(l1 @ IG(), BALL, BY, weight="1"), r"expected a finite weight λ ≥ 0, got '1'"),
    ],
)
def test_unknown_operands_are_refused_with_an_example(compose: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        compose()
    assert len(str(caught.value)) < 450  # a composition of fifty nodes is not printed


class Ball:
    """A neighbourhood without methods; the tests add wrong ones."""

    bounds = None

    def start(self, x, rand=torch.rand_like):
        return x + 0.1 * rand(x)

    def direction(self, g):
        return g.sign()

    def project(self, z, x):
        return z


@pytest.mark.parametrize(
    ("name", "method", "words"),
    [
        ("project", lambda self, z: z, r"expected Wrong.project\(z, x\), as in LinfBall\(0.3\), got project\(z\)"),
        ("start", lambda self, x: x, r"expected Wrong.start\(x, rand\), as in LinfBall\(0.3\), got start\(x\)"),
        ("start", lambda self, x, rand: x[:1], r"shape of x, \(4, 6\), from <.*Wrong object>, got \(1, 6\)"),
        ("project", lambda self, z, x: None, r"shape of x, \(4, 6\), from PGD\(.*, got NoneType"),
    ],
)
def test_wrong_methods_of_a_neighbourhood_are_refused(name: str, method: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        objectives.madry(type("Wrong", (Ball,), {name: method})(), BY)(mlp(), X, Y)


@pytest.mark.parametrize(
    ("iterates", "words"),
    [
        (lambda self, grad, x, within: [x], r"expected Wrong.iterates\(grad, x, within, \*, start, rand\), as in PGD"),
        (lambda self, grad, x, within, *, start, rand: None, r"iterates to yield points, as `yield z` does, got None"),
        (lambda self, grad, x, within, *, start, rand: [x[:2]], r"shape of x, \(4, 6\), from <.*>, got \(2, 6\)"),
    ],
)
def test_wrong_adversaries_are_refused(iterates: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        objectives.madry(BALL, type("Wrong", (), {"iterates": iterates})())(mlp(), X, Y)


@pytest.mark.parametrize(
    ("found", "got"), [(None, "NoneType"), (torch.zeros(3), r"\(3,\)"), (torch.zeros(()), r"\(\)")]
)
def test_a_map_without_a_row_per_example_is_refused(found: Any, got: str) -> None:
    with pytest.raises(InvalidInput, match=rf"expected a map of shape \(4, ...\), one row per example.* got {got}"):
        Robust(l1 @ (lambda model, x, x1, y: found), BALL, BY)(mlp(), X, Y)


def test_an_error_shows_the_beginning_of_a_long_value() -> None:
    assert brief(3) == "3"
    assert " at 0x" not in brief(object())
    assert (len(brief("a" * 500)), brief("a" * 500)[-1]) == (120, "…")
