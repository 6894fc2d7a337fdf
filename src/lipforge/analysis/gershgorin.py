"""Bounds on the largest singular value from row sums, before and after a mask.

By Gershgorin every eigenvalue of A = W^T W is at most the largest row sum of |A|, and |W^T W| <= |W|^T |W| entry by
entry. The row sums of the right side are |W|^T |W| 1: two passes through the layer with the absolute values of its
weights, and no matrix. So the bound here is valid, and at least as large as Gershgorin's own. A mask d turns A into
diag(d) A diag(d), whose row sums are at most d * |W|^T |W| d.
"""

import torch
from torch import Tensor

from lipforge.analysis.operators import Operator


@torch.no_grad()
def gershgorin(absolute: Operator, keep: Tensor) -> Tensor:
    """Upper bounds (M,) on the largest singular value of W diag(keep), one for each item of `keep` (M, *item) >= 0.

    `absolute` is the operator of |W|.
    """
    sums: Tensor = keep * absolute.gram(keep)
    return sums.flatten(1).amax(dim=1).sqrt()
