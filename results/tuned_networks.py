"""Part two of docs/results.md: the tuned networks. What the network does, what the objective does, and their tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from results import best, claims
from results.claims import ATTRIBUTION, is_papers, without_sweep
from results.sections import end_of_training, figures, join, strict_table, warnings
from results.values import show_estimate, show_range, title
from robattr.metrics.intervals import Estimate
from robattr.reporting.groups import group_evaluations
from robattr.reporting.published import DATASETS
from robattr.reporting.record import APPROACHES
from robattr.reporting.run_results import RunResults
from robattr.reporting.tables import escape_markdown, folded, grid, markdown, table

INTRODUCTION = """\
Other networks, trained in minutes: average pools on MNIST (`avgpool_cnn`), a tone curve and a slight blur on
Fashion-MNIST (`blur_cnn`), wider ResNets on GTSRB and Flower (`wide_resnet`, `pooled_resnet`). Their recipes
(`…-tuned`) differ from the paper's in steps and nodes, too; [what was tried](tried.md) says how they were chosen. Two
more kinds of network were made to hold under `strict`: on Fashion-MNIST one that is nearly a sum over pixels
(`additive_net`, `natural-additive`), on GTSRB and Flower ResNets without kinks (`smooth_resnet`, `madry-smooth`: Madry
by one step, with an ε below the attack's, so that their adversarial accuracy is lower). Test images influenced three
choices: ε of IG-NORM on Fashion-MNIST, how long IG-NORM on GTSRB (first seed) was trained, and
to try β above 2 for IG-SUM-NORM on GTSRB.

Differences are paired, as above, under `paper` with IG maps: the range over the datasets that have both records."""
COLUMNS = (*ATTRIBUTION, "nat_acc", "adv_acc")
OBJECTIVES = (("natural", "madry"), ("madry", "ig-norm"), ("madry", "ig-sum-norm"))
PAPERS, TUNED = "the paper's network", "the tuned network"


@dataclass(frozen=True)
class Effect:
    """The difference between two models on a dataset, and the kind of it that all datasets share."""

    kind: str
    dataset: str
    compared: str
    found: dict[str, Estimate]


def section(runs: Sequence[RunResults], folder: Path) -> str:
    """The part, from the runs of both parts; figures are relative to `folder`. "" without a tuned network."""
    tuned = [run for run in runs if not is_papers(run)]
    if not tuned:
        return ""
    strict = strict_table(tuned)
    return join(
        "## The tuned networks",
        INTRODUCTION,
        best.section(runs),
        _effects("What the network does", effects_of_network(runs)),
        _effects("What the objective does", effects_of_objective(runs)),
        "### Their tables and figures",
        _table("Integrated gradients, beside the paper's table 1", without_sweep(tuned), "ig"),
        _table("Simple gradient, beside the paper's table 3", without_sweep(tuned), "sg"),
        _table("IG-NORM on MNIST over m, beside the paper's table 2", claims.sweep_over_m(tuned), "ig"),
        folded("The strict protocol, with the noise control", strict) if strict else "",
        end_of_training(tuned),
        figures("tuned", folder),
    )


def effects_of_network(runs: Sequence[RunResults]) -> Iterator[Effect]:
    """Each objective on a tuned network and on the paper's."""
    for method, dataset in product(APPROACHES, DATASETS):
        for network in _networks(runs, dataset):
            if network and (found := _differences(runs, dataset, (method, ""), (method, network))):
                name = f"{APPROACHES[method]} on {{}} − on {PAPERS}"
                yield Effect(name.format(_kind(runs, network)), dataset, name.format(network), found)


def effects_of_objective(runs: Sequence[RunResults]) -> Iterator[Effect]:
    """Two objectives on one network: Madry against NATURAL, the IG methods against Madry."""
    for (first, second), dataset in product(OBJECTIVES, DATASETS):
        for network in _networks(runs, dataset):
            if found := _differences(runs, dataset, (first, network), (second, network)):
                name = f"{APPROACHES[second]} − {APPROACHES[first]} on {{}}"
                yield Effect(name.format(TUNED if network else PAPERS), dataset, name.format(network or PAPERS), found)


def _effects(heading: str, effects: Iterable[Effect]) -> str:
    """The range of each kind of effect over the datasets; the effects themselves are folded."""
    every = list(effects)
    if not every:
        return join(f"### {heading}", "Not yet measured.")
    ranges = []
    for kind in dict.fromkeys(effect.kind for effect in every):
        of = [effect for effect in every if effect.kind == kind]
        shown = [show_range(key, [effect.found[key].value for effect in of]) for key in COLUMNS]
        ranges.append([escape_markdown(kind), str(len({effect.dataset for effect in of})), *shown])
    rows = [
        [e.dataset, escape_markdown(e.compared), *(show_estimate(key, e.found[key]) for key in COLUMNS)] for e in every
    ]
    titles = [title(key) for key in COLUMNS]
    return join(
        f"### {heading}",
        grid(("Difference", "Datasets", *titles), ranges),
        folded("Each dataset, with intervals", grid(("Dataset", "Difference", *titles), rows)),
    )


def _differences(
    runs: Sequence[RunResults], dataset: str, first: tuple[str, str], second: tuple[str, str]
) -> dict[str, Estimate]:
    """The differences between two (method, network) in every column; {} where one has no record."""
    chosen = [run for part in (True, False) for run in without_sweep([r for r in runs if is_papers(r) == part])]
    a, b = ([r for r in chosen if (r.dataset, r.method, _network(r)) == (dataset, *of)] for of in (first, second))
    return claims.differences(claims.pairs(a, b, "paper"), COLUMNS)


def _networks(runs: Iterable[RunResults], dataset: str) -> list[str]:
    """The networks of a dataset; the paper's is "", and first."""
    return sorted({_network(run) for run in runs if run.dataset == dataset})


def _kind(runs: Iterable[RunResults], network: str) -> str:
    """`TUNED` for the network of a tuned recipe, else its name."""
    tuned = {_network(run) for run in runs if str(run.config.get("recipe")).endswith("-tuned")}
    return TUNED if network in tuned else network


def _network(run: RunResults) -> str:
    return str(run.config.get("model") or "")


def _table(heading: str, runs: Sequence[RunResults], map_name: str) -> str:
    """A table of the paper beside ours, folded; "" without rows."""
    groups = [g for g in group_evaluations(runs) if (g.protocol, g.map_name) == ("paper", map_name)] if runs else []
    if not groups:
        return ""
    groups.sort(key=lambda g: [*DATASETS, g.dataset].index(g.dataset))
    counts = "; ".join(f"{g.dataset} {', '.join(f'{count:,}' for count in g.counts)}" for g in groups)
    said = warnings(member for group in groups for member in group.members)
    return folded(heading, join(markdown(table(groups)), f"Test images: {counts}.", said))
