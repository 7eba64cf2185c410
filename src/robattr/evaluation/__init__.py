"""Evaluation of a model under a protocol: attacks, scores, records, summaries."""

from typing import TYPE_CHECKING

from robattr._lazy import lazy

if TYPE_CHECKING:
    from robattr.evaluation.output_dir import OutputDir as OutputDir
    from robattr.evaluation.protocol import Protocol as Protocol
    from robattr.evaluation.protocol import for_dataset as for_dataset
    from robattr.evaluation.protocol import paper as paper
    from robattr.evaluation.protocol import scaled as scaled
    from robattr.evaluation.protocol import strict as strict
    from robattr.evaluation.run import Evaluation as Evaluation
    from robattr.evaluation.run import evaluate as evaluate
    from robattr.evaluation.summary import compare as compare

lazy(
    __name__,
    output_dir="OutputDir",
    protocol="Protocol for_dataset paper scaled strict",
    run="Evaluation evaluate",
    summary="compare",
)
