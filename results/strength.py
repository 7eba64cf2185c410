"""The strict protocol against attacks that it does not contain: `python -m results.strength MODEL… --examples 32`.

Models are run directories or models of the zoo. For each, on validation images (Flower has none: its test images):

    adapted     the defence's own regulariser as the loss, by APGD on the true network, the label kept by a term
    10x         the attacks of the first round along the sharpening twin, with ten times the iterations
    transfer    the same attacks with the gradients of every other model given for the same dataset

What lowers the worst case by more than 1 point of top-k, or 0.01 of rank correlation, belongs into the protocol.
Writes -o FILE.json after every model, which `python -m results.strength --render FILE.json` shows as Markdown.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robattr.attacks.ifia import IFIA
from robattr.attacks.maps import integrated_gradients, orderable, saliency
from robattr.engine.files import write_atomically
from robattr.evaluation.protocol import Protocol, for_dataset, strict
from robattr.evaluation.suite import attribution_attacks, schedule
from robattr.evaluation.worst_case import worst_case
from robattr.formula.change import Change
from robattr.formula.neighbourhoods import LinfBall
from robattr.formula.network import second_order
from robattr.metrics.columns import COLUMN
from robattr.reporting.tables import escape_markdown, grid
from robattr.runs import Run, open_run

LONGER = 10
LIMIT = 0.01  # one point of top-k, or of rank correlation


def regularisers(run: Run, protocol: Protocol) -> Iterator[Change]:
    """What the defence punishes, within the radius of the protocol; nothing for natural training."""
    if run.config is None:
        return
    rho: Any = run.config.objective(protocol.bounds)
    within = LinfBall(protocol.eps, protocol.bounds)
    for part in getattr(rho, "terms", (rho,)):
        if part.change.terms:
            yield part.change.over(within)


def outside(run: Run, others: Sequence[Run], protocol: Protocol, *, images: bool) -> dict[str, list[IFIA]]:
    """The attacks that strict does not contain, by name."""
    map = integrated_gradients(protocol.N)
    attacks = attribution_attacks(protocol, run.model, map, images=images)[1:]
    planned = list(zip(schedule(protocol, images=images), attacks, strict=True))
    chains = [attack for a, attack in planned if len(a.betas) > 1 and a.round == 0]
    base = replace(chains[0], beta=float("inf"), relative=False, aim=None, steps=protocol.steps, seed=99)
    found = {"adapted": [replace(base, kind=d) for d in regularisers(run, protocol)]}
    found["10x"] = [replace(attack, steps=LONGER * attack.steps, seed=98) for attack in chains]
    found["transfer"] = [replace(attack, source=other.model) for other in others for attack in chains]
    return found


def examples(run: Run, count: int, device: torch.device) -> tuple[Tensor, Tensor, list[int]]:
    """The first correctly classified validation images."""
    split = "validation" if len(run.data.examples("validation", 1)[0]) else "test"
    x, y, ids = run.data.examples(split, count)
    x, y = x.to(device), y.to(device)
    with second_order(run.model), torch.no_grad():
        right = run.model(x).argmax(dim=1) == y
    right &= orderable(saliency(integrated_gradients(for_dataset(run.data).N), run.model, x, y))
    return x[right], y[right], ids[right.cpu()].tolist()


def strength(run: Run, others: Sequence[Run], count: int, device: torch.device) -> dict[str, Any]:
    """The worst case of strict, and how much each attack outside lowers it, on average."""
    run.model.to(device)
    protocol = strict(for_dataset(run.data))
    x, y, ids = examples(run, count, device)
    map = integrated_gradients(protocol.N)
    clean = saliency(map, run.model, x, y)
    attacks = attribution_attacks(protocol, run.model, map, images=True)
    within = worst_case(attacks, x, y, clean, ids=ids, protocol=protocol)
    made: dict[str, Any] = {"run": run.name, "dataset": run.data.name, "examples": len(x), "outside": {}}
    made |= {name: float(within.worst[name].mean()) for name in ("topk", "kendall")}
    for name, more in outside(run, others, protocol, images=True).items():
        if more:
            worst = {key: within.worst[key] for key in ("topk", "kendall")}
            for attack in more:
                result = attack(x, y, ids=ids, clean=clean)
                worst = {key: torch.minimum(values, result.worst[key]) for key, values in worst.items()}
            made["outside"][name] = {key: float((within.worst[key] - v).mean()) for key, v in worst.items()}
    return made


def render(rows: Sequence[Mapping[str, Any]]) -> str:
    """The measurements as a Markdown table; what exceeds the limit is bold."""
    names = list(dict.fromkeys(name for row in rows for name in row["outside"]))

    def cell(gain: Mapping[str, float] | None) -> str:
        if gain is None:
            return "–"
        text = f"{100 * gain['topk']:.2f} / {gain['kendall']:.4f}"
        return f"**{text}**" if max(gain.values()) > LIMIT else text

    lines = [
        [row["dataset"], escape_markdown(row["run"]), str(row["examples"]), f"{100 * row['topk']:.2f}%",
         f"{row['kendall']:.4f}", *(cell(row["outside"].get(name)) for name in names)]
        for row in rows
    ]  # fmt: skip
    scores = (COLUMN[key].title for key in ("topk", "kendall"))
    return grid(("Dataset", "Model", "Examples", *scores, *names), lines)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--examples", type=int, default=32)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--render", type=Path)
    given = parser.parse_args(words)
    if given.render:
        print(render(json.loads(given.render.read_text(encoding="utf-8"))))
        return 0
    if not given.models:
        parser.error("expected at least one model, or --render FILE.json")
    runs = [open_run(name) for name in given.models]
    rows: list[dict[str, Any]] = []
    for run in runs:
        others = [other for other in runs if other is not run and other.data.name == run.data.name]
        for other in others:
            other.model.to(given.device)
        rows.append(strength(run, others, given.examples, torch.device(given.device)))
        if given.out:
            write_atomically(given.out, (json.dumps(rows, indent=1) + "\n").encode())
    print(render(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
