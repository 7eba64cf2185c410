"""The engine: how the formula runs. Compilation, CUDA graphs and precision; nothing mathematical."""

from typing import TYPE_CHECKING

from robattr._lazy import lazy

if TYPE_CHECKING:
    from robattr.engine.compiled import Compiled as Compiled
    from robattr.engine.precision import deterministic as deterministic
    from robattr.engine.precision import exactly as exactly
    from robattr.engine.precision import in_use as in_use
    from robattr.engine.precision import layout as layout
    from robattr.engine.precision import precision as precision
    from robattr.engine.precision import tuned as tuned
    from robattr.engine.step import Step as Step

lazy(
    __name__,
    compiled="Compiled",
    precision="deterministic exactly in_use layout precision tuned",
    step="Step",
)
