"""Attacks on a model's predictions (PGD, APGD) and on its attribution maps (IFIA)."""

from robattr.attacks.ifia import IFIA as IFIA
from robattr.attacks.maps import AttributionMap as AttributionMap
from robattr.attacks.maps import from_callable as from_callable
from robattr.attacks.maps import gradient_input as gradient_input
from robattr.attacks.maps import integrated_gradients as integrated_gradients
from robattr.attacks.maps import simple_gradient as simple_gradient
from robattr.attacks.maps import smooth_grad as smooth_grad
from robattr.attacks.pgd import PGDAttack as PGDAttack
from robattr.attacks.result import AttackResult as AttackResult
