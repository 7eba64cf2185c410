"""How far two attribution maps agree: batched, exact, on CPU and GPU.

`a` and `b` are batches of maps, (B, n), (B, H, W) or (B, C, H, W); every measure answers (B,) float64. Where a
measure is not defined (a constant map, a map with NaN) the answer is nan, for the caller to count and explain.
"""

from robattr.evaluate.agreement.concordance import kendall as kendall
from robattr.evaluate.agreement.concordance import tie_ceiling as tie_ceiling
from robattr.evaluate.agreement.ranks import cosine as cosine
from robattr.evaluate.agreement.ranks import spearman as spearman
from robattr.evaluate.agreement.shapes import mass_center as mass_center
from robattr.evaluate.agreement.shapes import mass_center_displacement as mass_center_displacement
from robattr.evaluate.agreement.shapes import ssim as ssim
from robattr.evaluate.agreement.top import top_k_mask as top_k_mask
from robattr.evaluate.agreement.top import topk_intersection as topk_intersection
