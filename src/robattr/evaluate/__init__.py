"""Attack and measure: how robust are a model's predictions, and its explanations?"""

from robattr.evaluate.ifia import IFIA as IFIA
from robattr.evaluate.ifia import Found as Found
from robattr.evaluate.maps import Saliency as Saliency
from robattr.evaluate.maps import from_callable as from_callable
from robattr.evaluate.maps import gradient_input as gradient_input
from robattr.evaluate.maps import integrated_gradients as integrated_gradients
from robattr.evaluate.maps import simple_gradient as simple_gradient
from robattr.evaluate.maps import smooth_grad as smooth_grad
from robattr.evaluate.pgd import PGDAttack as PGDAttack
from robattr.evaluate.protocol import Protocol as Protocol
from robattr.evaluate.protocol import for_dataset as for_dataset
from robattr.evaluate.protocol import paper as paper
from robattr.evaluate.protocol import scaled as scaled
from robattr.evaluate.protocol import strict as strict
from robattr.evaluate.run import Evaluation as Evaluation
from robattr.evaluate.run import Place as Place
from robattr.evaluate.run import evaluate as evaluate
from robattr.evaluate.summary import compare as compare
