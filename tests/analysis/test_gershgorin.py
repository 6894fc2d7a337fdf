"""Row-sum bounds: above the SVD, above Gershgorin's own, equal to the explicit row sums of |W|^T |W|."""

import pytest
import torch

from lipforge.analysis.gershgorin import gershgorin
from lipforge.analysis.operators import operator_of
from tests.analysis.matrices import CASES, made, masks


@pytest.mark.parametrize("binary", [True, False], ids=["step", "graded"])
@pytest.mark.parametrize("name", CASES)
def test_the_bound_is_the_largest_row_sum_of_the_explicit_matrix_and_above_the_truth(name, binary):
    layer, shape, matrix = made(name)
    keep = masks(shape, 6, binary=binary)
    bounds = gershgorin(operator_of(layer, absolute=True), keep)
    masked = matrix * keep.flatten(1)[:, None, :]
    sums = masked.abs().mT @ masked.abs()
    if name != "reflect":  # reads a pixel twice: |a| + |b| is above |a + b|, and the bound still a bound
        torch.testing.assert_close(bounds, sums.sum(dim=2).amax(dim=1).sqrt())
    own = (masked.mT @ masked).abs().sum(dim=2).amax(dim=1).sqrt()
    true = torch.linalg.matrix_norm(masked, ord=2)
    assert (bounds >= own * (1 - 1e-12)).all()
    assert (own >= true * (1 - 1e-12)).all()


@pytest.mark.parametrize("name", CASES)
def test_a_mask_never_raises_the_bound(name):
    layer, shape, _ = made(name)
    bounds = gershgorin(operator_of(layer, absolute=True), masks(shape, 8, seed=1))
    assert bounds[0] == 0
    assert (bounds <= bounds[-1] * (1 + 1e-12)).all()
