"""The paper's networks, a small one, the softplus twin of any network, weights files, and the zoo."""

from robattr.models.architecture import Spec as Spec
from robattr.models.architecture import architecture as architecture
from robattr.models.architecture import architectures as architectures
from robattr.models.by_name import for_dataset as for_dataset
from robattr.models.by_name import from_factory as from_factory
from robattr.models.cnn import paper_cnn as paper_cnn
from robattr.models.cnn import small_cnn as small_cnn
from robattr.models.resnet import flower_resnet as flower_resnet
from robattr.models.resnet import gtsrb_resnet as gtsrb_resnet
from robattr.models.resnet import resnet as resnet
from robattr.models.resnet import scale_invariant as scale_invariant
from robattr.models.smooth import Smooth as Smooth
from robattr.models.smooth import smooth as smooth
from robattr.models.softplus import with_softplus as with_softplus
from robattr.models.weights_file import load_weights as load_weights
from robattr.models.weights_file import read_metadata as read_metadata
from robattr.models.weights_file import read_model as read_model
from robattr.models.weights_file import save_model as save_model
