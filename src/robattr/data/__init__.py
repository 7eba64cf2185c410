"""Data: the paper's four datasets, an embedded default, the user's own, and training batches."""

from typing import TYPE_CHECKING

from robattr._lazy import lazy

if TYPE_CHECKING:
    from robattr.data.augmentation import Geometry as Geometry
    from robattr.data.augmentation import augment as augment
    from robattr.data.augmentation import draw as draw
    from robattr.data.batches import Batches as Batches
    from robattr.data.catalog import DataStatus as DataStatus
    from robattr.data.catalog import folder as folder
    from robattr.data.catalog import info as info
    from robattr.data.catalog import load as load
    from robattr.data.catalog import names as names
    from robattr.data.catalog import root as root
    from robattr.data.catalog import status as status
    from robattr.data.catalog import verify as verify
    from robattr.data.dataset import Dataset as Dataset
    from robattr.data.dataset import DatasetInfo as DatasetInfo
    from robattr.data.dataset import Split as Split
    from robattr.data.download import fetch as fetch
    from robattr.data.image_folder import from_folder as from_folder
    from robattr.data.images import equalise as equalise
    from robattr.data.tensors import from_dataset as from_dataset
    from robattr.data.tensors import from_tensors as from_tensors

lazy(
    __name__,
    augmentation="Geometry augment draw",
    batches="Batches",
    catalog="DataStatus folder info load names root status verify",
    dataset="Dataset DatasetInfo Split",
    download="fetch",
    image_folder="from_folder",
    images="equalise",
    tensors="from_dataset from_tensors",
)
