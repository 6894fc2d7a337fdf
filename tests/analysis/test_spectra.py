"""Largest singular values against the SVD of explicit matrices, masks that can only lower them, and row-sum bounds.

The bounds are above the SVD, above Gershgorin's own, and equal to the explicit row sums of |W|^T |W|.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lipforge.analysis.spectra import gershgorin, largest_singular, operator_of
from lipforge.errors import InputError
from tests.analysis.matrices import CASES, made, masks


def exact(matrix: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return torch.linalg.matrix_norm(matrix * keep.flatten(1)[:, None, :], ord=2)


@pytest.mark.parametrize("name", CASES)
def test_the_gram_product_is_that_of_the_explicit_matrix(name):
    layer, shape, matrix = made(name)
    v = torch.randn(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    product = operator_of(layer).gram(v)
    torch.testing.assert_close(product.flatten(1), v.flatten(1) @ matrix.T @ matrix)


@pytest.mark.parametrize("name", CASES)
def test_the_largest_singular_value_is_that_of_the_svd(name):
    layer, shape, matrix = made(name)
    found = largest_singular(operator_of(layer), torch.ones(1, *shape, dtype=torch.float64), tolerance=1e-9, steps=300)
    torch.testing.assert_close(found.values[0], torch.linalg.svdvals(matrix)[0])
    assert found.residuals.max() <= 1e-9


@pytest.mark.parametrize("binary", [True, False], ids=["step", "graded"])
@pytest.mark.parametrize("name", CASES)
def test_each_mask_of_a_batch_has_the_singular_value_of_its_own_matrix(name, binary):
    layer, shape, matrix = made(name)
    keep = masks(shape, 6, binary=binary)
    found = largest_singular(operator_of(layer), keep, tolerance=1e-9, steps=300)
    torch.testing.assert_close(found.values, exact(matrix, keep))
    assert found.values[0] == 0  # everything is masked


@settings(max_examples=40)
@given(name=st.sampled_from(sorted(CASES)), seed=st.integers(0, 10_000), binary=st.booleans())
def test_a_mask_never_raises_the_largest_singular_value(name, seed, binary):
    """Interlacing: W diag(d) with 0 <= d <= 1."""
    layer, shape, _ = made(name)
    operator, ones = operator_of(layer), torch.ones(1, *shape, dtype=torch.float64)
    whole = largest_singular(operator, ones, tolerance=1e-9, steps=200).values
    masked = largest_singular(operator, masks(shape, 4, seed, binary=binary), tolerance=1e-6, steps=200).values
    assert (masked <= whole * (1 + 1e-9)).all()


@pytest.mark.parametrize("name", CASES)
def test_every_answer_is_a_lower_bound_and_the_residual_says_how_good_it_is(name):
    layer, shape, matrix = made(name)
    keep = masks(shape, 5, seed=3)
    early = largest_singular(operator_of(layer), keep, tolerance=0.0, steps=3)
    assert early.steps == 3
    true = exact(matrix, keep)
    assert (early.values <= true * (1 + 1e-12)).all()
    eigenvalues = torch.linalg.svdvals(matrix * keep.flatten(1)[:, None, :]) ** 2
    nearest = (eigenvalues - early.values[:, None] ** 2).abs().amin(dim=1)
    assert (nearest <= early.residuals * early.values**2 + 1e-10).all()


def test_it_stops_as_soon_as_the_tolerance_is_met():
    layer, shape, _ = made("conv")
    keep = torch.ones(1, *shape, dtype=torch.float64)
    loose = largest_singular(operator_of(layer), keep, tolerance=1e-1)
    tight = largest_singular(operator_of(layer), keep, tolerance=1e-8)
    assert loose.steps < tight.steps < 100


def test_a_float32_layer_of_real_size_comes_within_its_precision_of_float64():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.Conv2d(16, 16, 3, padding=1, bias=False)
    single = largest_singular(operator_of(layer), torch.ones(1, 16, 16, 16), tolerance=1e-4)
    double = largest_singular(
        operator_of(layer.double()), torch.ones(1, 16, 16, 16).double(), tolerance=1e-8, steps=300
    )
    assert single.values.item() == pytest.approx(double.values.item(), rel=1e-4)


def test_a_token_is_an_item_of_its_own_for_a_linear_layer():
    layer, _, matrix = made("linear")
    keep = masks((7,), 6).view(2, 3, 7)
    operator = operator_of(layer)
    assert operator.items(keep).shape == (6, 7)
    found = largest_singular(operator, operator.items(keep), tolerance=1e-9)
    torch.testing.assert_close(found.values, exact(matrix, keep.view(6, 7)))


def test_what_is_not_a_conv_or_a_linear_layer_has_no_operator():
    with pytest.raises(InputError, match="conv or a linear layer, got ReLU"):
        operator_of(nn.ReLU())


@pytest.mark.parametrize("binary", [True, False], ids=["step", "graded"])
@pytest.mark.parametrize("name", CASES)
def test_the_row_sum_bound_is_the_largest_row_sum_of_the_explicit_matrix_and_above_the_truth(name, binary):
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
def test_a_mask_never_raises_the_row_sum_bound(name):
    layer, shape, _ = made(name)
    bounds = gershgorin(operator_of(layer, absolute=True), masks(shape, 8, seed=1))
    assert bounds[0] == 0
    assert (bounds <= bounds[-1] * (1 + 1e-12)).all()
