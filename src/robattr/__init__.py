"""robattr: robust attribution regularization.

    ρ(x, y; θ) = ℓ(x, y; θ) + λ · max_{x' ∈ N(x, ε)} s(IG_h^{ℓ_y}(x, x'; r))

Every part is a value that can be swapped; `robattr.objectives` composes them into the objectives of the paper.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from robattr._version import __version__ as __version__
from robattr.errors import RobattrError as RobattrError

if _TYPE_CHECKING:
    from robattr import attacks as attacks
    from robattr import auditing as auditing
    from robattr import certificates as certificates
    from robattr import data as data
    from robattr import engine as engine
    from robattr import evaluation as evaluation
    from robattr import formula as formula
    from robattr import integrations as integrations
    from robattr import metrics as metrics
    from robattr import models as models
    from robattr import objectives as objectives
    from robattr import recipes as recipes
    from robattr import reporting as reporting
    from robattr import reproduce as reproduce
    from robattr import runs as runs
    from robattr import training as training
    from robattr.attacks import IFIA as IFIA
    from robattr.attacks import PGDAttack as PGDAttack
    from robattr.auditing import audit as audit
    from robattr.auditing import certify as certify
    from robattr.auditing import doctor as doctor
    from robattr.auditing import harden as harden
    from robattr.evaluation import evaluate as evaluate
    from robattr.formula import APGD as APGD
    from robattr.formula import IG as IG
    from robattr.formula import PGD as PGD
    from robattr.formula import BaselineIG as BaselineIG
    from robattr.formula import Best as Best
    from robattr.formula import Box as Box
    from robattr.formula import Change as Change
    from robattr.formula import Distance as Distance
    from robattr.formula import Distributional as Distributional
    from robattr.formula import Everywhere as Everywhere
    from robattr.formula import FiniteDifference as FiniteDifference
    from robattr.formula import Gradient as Gradient
    from robattr.formula import HessianVector as HessianVector
    from robattr.formula import IntegratedGradients as IntegratedGradients
    from robattr.formula import Joint as Joint
    from robattr.formula import L1Ball as L1Ball
    from robattr.formula import L2Ball as L2Ball
    from robattr.formula import LinfBall as LinfBall
    from robattr.formula import LpBall as LpBall
    from robattr.formula import Map as Map
    from robattr.formula import PathLayerIG as PathLayerIG
    from robattr.formula import RandomSigns as RandomSigns
    from robattr.formula import Rho as Rho
    from robattr.formula import Robust as Robust
    from robattr.formula import Rule as Rule
    from robattr.formula import Size as Size
    from robattr.formula import at_input as at_input
    from robattr.formula import at_layer as at_layer
    from robattr.formula import at_output as at_output
    from robattr.formula import averaged as averaged
    from robattr.formula import blurred as blurred
    from robattr.formula import clean as clean
    from robattr.formula import combine as combine
    from robattr.formula import cosine as cosine
    from robattr.formula import cross_entropy as cross_entropy
    from robattr.formula import displacement as displacement
    from robattr.formula import frozen as frozen
    from robattr.formula import gauss_legendre as gauss_legendre
    from robattr.formula import gauss_newton as gauss_newton
    from robattr.formula import keep_label as keep_label
    from robattr.formula import kendall as kendall
    from robattr.formula import kl as kl
    from robattr.formula import l1 as l1
    from robattr.formula import l2 as l2
    from robattr.formula import left as left
    from robattr.formula import linf as linf
    from robattr.formula import logit as logit
    from robattr.formula import logits as logits
    from robattr.formula import magnitude as magnitude
    from robattr.formula import margin as margin
    from robattr.formula import midpoint as midpoint
    from robattr.formula import output as output
    from robattr.formula import pearson as pearson
    from robattr.formula import polyline as polyline
    from robattr.formula import power as power
    from robattr.formula import probability as probability
    from robattr.formula import radau as radau
    from robattr.formula import rank_margin as rank_margin
    from robattr.formula import right as right
    from robattr.formula import runner_up as runner_up
    from robattr.formula import shift_bound as shift_bound
    from robattr.formula import soft_margin as soft_margin
    from robattr.formula import spread_bound as spread_bound
    from robattr.formula import squared_error as squared_error
    from robattr.formula import straight as straight
    from robattr.formula import target as target
    from robattr.formula import the_input as the_input
    from robattr.formula import total as total
    from robattr.formula import uniform as uniform
    from robattr.formula import value_of as value_of
    from robattr.formula import weighted_outputs as weighted_outputs
    from robattr.formula import wrong_logit as wrong_logit
    from robattr.models import smooth as smooth
    from robattr.runs import load_model as load_model
    from robattr.training import TrainConfig as TrainConfig
    from robattr.training import sweep as sweep
    from robattr.training import train as train

_SUBPACKAGES = (
    "attacks", "auditing", "certificates", "data", "engine", "evaluation", "formula", "integrations", "metrics",
    "models", "objectives", "recipes", "reporting", "reproduce", "runs", "training",
)  # fmt: skip
_LAZY = {
    **dict.fromkeys((
        "APGD", "IG", "PGD", "BaselineIG", "Best", "Box", "Change", "Distance", "Distributional",
        "Everywhere", "FiniteDifference", "Gradient", "HessianVector", "IntegratedGradients", "Joint",
        "L1Ball", "L2Ball", "LinfBall", "LpBall", "Map", "PathLayerIG", "RandomSigns", "Rho", "Robust",
        "Rule", "Size", "at_input", "at_layer", "at_output", "averaged", "blurred", "clean", "combine",
        "cosine", "cross_entropy", "displacement", "frozen", "gauss_legendre", "gauss_newton", "keep_label",
        "kendall", "kl", "l1", "l2", "left", "linf", "logit", "logits", "magnitude", "margin", "midpoint",
        "output", "pearson", "polyline", "power", "probability", "radau", "rank_margin", "right",
        "runner_up", "shift_bound", "soft_margin", "spread_bound", "squared_error", "straight", "target",
        "the_input", "total", "uniform", "value_of", "weighted_outputs", "wrong_logit",
    ), "robattr.formula"),
    **dict.fromkeys(("IFIA", "PGDAttack"), "robattr.attacks"),
    **dict.fromkeys(("audit", "certify", "doctor", "harden"), "robattr.auditing"),
    "evaluate": "robattr.evaluation",
    "load_model": "robattr.runs",
    "smooth": "robattr.models",
    **dict.fromkeys(("TrainConfig", "sweep", "train"), "robattr.training"),
}  # fmt: skip
__all__ = ["RobattrError", "objectives", *_LAZY]


def __getattr__(name: str) -> object:
    """Import a name at its first use: `robattr --help` and shell completion do not wait for torch."""
    if name in _SUBPACKAGES:
        return _import_module(f"robattr.{name}")
    if name in _LAZY:
        return getattr(_import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Every public name, also those not imported yet."""
    return sorted({*globals(), *_SUBPACKAGES, *_LAZY})
