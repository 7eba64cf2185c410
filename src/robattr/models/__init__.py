"""The paper's networks, a small one, the softplus twin of any network, and networks on disk."""

from robattr.models.architecture import Spec as Spec
from robattr.models.architecture import architecture as architecture
from robattr.models.architecture import architectures as architectures
from robattr.models.cnn import blurred_cnn as blurred_cnn
from robattr.models.cnn import paper_cnn as paper_cnn
from robattr.models.cnn import small_cnn as small_cnn
from robattr.models.cnn import threshold_cnn as threshold_cnn
from robattr.models.cnn import toe_cnn as toe_cnn
from robattr.models.defaults import for_dataset as for_dataset
from robattr.models.factory import from_factory as from_factory
from robattr.models.resnet import flower_resnet as flower_resnet
from robattr.models.resnet import gtsrb_resnet as gtsrb_resnet
from robattr.models.resnet import pooled_resnet as pooled_resnet
from robattr.models.resnet import resnet as resnet
from robattr.models.resnet import scale_invariant as scale_invariant
from robattr.models.resnet import wide_resnet as wide_resnet
from robattr.models.smooth import Smooth as Smooth
from robattr.models.smooth import smooth as smooth
from robattr.models.store import halve as halve
from robattr.models.store import has_spec as has_spec
from robattr.models.store import load_model as load_model
from robattr.models.store import load_weights as load_weights
from robattr.models.store import read_metadata as read_metadata
from robattr.models.store import save_model as save_model
