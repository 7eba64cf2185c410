"""Certify the smoothed explanations of the user's own model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robattr._progress import Watch, silent
from robattr.attacks.maps import AttributionMap
from robattr.auditing.record import SIGMA, parse_maps
from robattr.auditing.wrapped_model import Preprocessing, wrap
from robattr.certificates import Certificates, Challenge, Examples, Smoothing, attack_certificates
from robattr.certificates import certify as run
from robattr.certificates.attack import KINDS
from robattr.certificates.run import attack_name, check_radii, seconds_per_copy, unrecorded
from robattr.engine.files import as_path
from robattr.engine.processes import join
from robattr.errors import InvalidInput
from robattr.evaluation.checks import check_kinds, forward
from robattr.evaluation.output_dir import OutputDir
from robattr.formula.neighbourhoods import check_range

RADIUS = 0.1  # of the range of the data
SECOND_ORDER = 4  # a step of an attack through one copy, in units of a copy's map and logits

Announce = Callable[[Examples, int, float], None]
"""announce(examples, left, seconds), called before anything is computed: how many examples have no certificate yet, and
an estimate of the time of all that is not recorded yet."""


def certify(
    model: nn.Module,
    x: Tensor,
    y: Tensor | None = None,
    *,
    map: str | AttributionMap = "ig",
    sigma: float | None = None,
    radius: float | Sequence[float] | None = None,
    samples: int = 1000,
    alpha: float = 0.001,
    top: float = 0.1,
    points: int = 100,
    attack: Challenge | bool = False,
    bounds: tuple[float, float] = (0.0, 1.0),
    preprocessing: Preprocessing | Mapping[str, Any] | None = None,
    ids: Sequence[int] | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    device: str = "auto",
    fresh: bool = False,
    metadata: Mapping[str, Any] | None = None,
    announce: Announce | None = None,
    watch: Watch = silent,
) -> Certificates:
    """Prove how far the smoothed explanations of `model` can be moved within an L2 radius of x.

    With probability at least 1 − α for each example, at every x' with ‖x' − x‖₂ ≤ radius: which pixels are among the
    top K of the vote map, how many of them overlap, the cosine of the mean maps, and whether the smoothed answer is y.
    docs/certificates.md has the definitions and proofs.

    model     any module that returns logits, or an output with .logits; it is not changed
    y         the classes that are explained (default: those that the model answers at x)
    map       "ig", "sg", "gi", "smoothgrad", "captum:Saliency", or your own `AttributionMap`; `points` are those of ig
    sigma     of the noise, and `radius` (one or several), in the units of the data (default: 0.25 and 0.1 of the range)
    samples   noisy copies per example; `top` the share of the pixels that K is
    attack    also search each radius for a point that breaks a certificate; `summary["attacks"]` has the results
    out       a folder for the records; the same call continues an interrupted one. None: nothing is written

    `certify(...).at(0.1)` gives the certificates of every example as arrays.
    """
    check_kinds(x=x, **({} if y is None else {"y": y}))
    if x.dim() < 2 or not len(x):
        raise InvalidInput(f"expected x of shape (B, ...) with at least one example, got {tuple(x.shape)}")
    if y is not None and y.shape != x.shape[:1]:
        raise InvalidInput(f"expected y of shape ({len(x)},), one class per example, got {tuple(y.shape)}")
    check_range(bounds)
    width = bounds[1] - bounds[0]
    radius = RADIUS * width if radius is None else radius
    smoothing = Smoothing(SIGMA * width if sigma is None else sigma, samples, alpha, top, seed)
    radii = list(radius) if isinstance(radius, Sequence) and not isinstance(radius, str) else [radius]
    check_radii(radii)
    radii = list(dict.fromkeys(float(each) for each in radii))
    (chosen,) = parse_maps([map], points=points, bounds=bounds)
    how = attack if isinstance(attack, Challenge) else Challenge() if attack else None
    with join(device) as world:
        if out is None and world.size > 1:
            raise InvalidInput("several processes share their records through a folder: give one, out='certificates'")
        wrapped, _ = wrap(model, preprocessing=preprocessing, device=world.device)
        if y is None:
            y = torch.cat([forward(wrapped, part.to(world.device)).argmax(dim=1) for part in x.split(256)])
        names = list(range(len(x))) if ids is None else [int(i) for i in ids]
        examples = Examples(wrapped, chosen, x, y.long(), names, smoothing, bounds)
        place = None if out is None else OutputDir(as_path(out), world.rank, world.size, fresh=fresh)
        if announce is not None and world.leads:
            examples.check(differentiated=bool(attack))
            left = unrecorded(examples, chosen.name, place)
            announce(examples, left, _seconds(examples, left, how, radii, place))

        def progress(title: str) -> Callable[[int, int], None]:
            return lambda done, total: watch(title, done, total, "noisy copies")

        found = run(examples, radii, out=place, metadata=metadata, progress=progress(f"certify {chosen.name}"))
        for within in [] if how is None else [how.within(each) for each in radii]:
            shown = progress(f"attack {chosen.name} within {within.radius:g}")
            result = attack_certificates(
                examples, found, within.radius, within, out=place, metadata=metadata, progress=shown
            )
            found.summary.setdefault("attacks", []).append(result)
    return found


def _seconds(
    examples: Examples, left: int, how: Challenge | None, radii: Sequence[float], place: OutputDir | None
) -> float:
    """Seconds of all that is not recorded: the copies for `left` certificates, and of the attacks at each radius."""
    copies = float(left * examples.smoothing.copies)
    if how is not None:
        each = (1 + len(KINDS)) * examples.smoothing.copies + SECOND_ORDER * how.steps * how.draws * len(KINDS)
        names = [attack_name(examples, radius, how.within(radius)) for radius in radii]
        copies += each * sum(unrecorded(examples, name, place) for name in names)
    return copies * seconds_per_copy(examples) if copies else 0.0
