"""Agreement of two attribution maps: batched, exact, on CPU and GPU.

`a` and `b` are batches of maps, (B, n), (B, H, W) or (B, C, H, W); every metric returns (B,) float64, and nan where it
is not defined (a constant map, a map with NaN).
"""

from typing import TYPE_CHECKING

from robattr._lazy import lazy

if TYPE_CHECKING:
    from robattr.metrics.kendall import kendall as kendall
    from robattr.metrics.kendall import tie_ceiling as tie_ceiling
    from robattr.metrics.spearman import cosine as cosine
    from robattr.metrics.spearman import spearman as spearman
    from robattr.metrics.ssim import mass_center as mass_center
    from robattr.metrics.ssim import mass_center_displacement as mass_center_displacement
    from robattr.metrics.ssim import ssim as ssim
    from robattr.metrics.topk import top_k_mask as top_k_mask
    from robattr.metrics.topk import topk_intersection as topk_intersection

lazy(
    __name__,
    kendall="kendall tie_ceiling",
    spearman="cosine spearman",
    ssim="mass_center mass_center_displacement ssim",
    topk="top_k_mask topk_intersection",
)
