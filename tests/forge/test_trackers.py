import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipforge.forge.trackers import Maximum, Moments, Quantile

CPU = torch.device("cpu")


def activations(seed: int = 0, shape: tuple[int, ...] = (24, 5, 4, 4)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * torch.rand(shape, generator=generator) ** 4


def make_tracker(kind: str) -> Maximum | Quantile | Moments:
    if kind == "maximum":
        return Maximum(torch.zeros(5), -3)
    return Quantile(0.99, CPU) if kind == "quantile" else Moments(5, -3, CPU)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_maximum_is_numpys(layout):
    x = activations().to(memory_format=layout)
    tracker = Maximum(torch.zeros(()))
    tracker.update(x)
    assert tracker.bound().item() == np.abs(x.numpy()).max()


def test_the_maximum_per_channel_is_numpys():
    x = activations()
    tracker = Maximum(torch.zeros(5), channel_dim=-3)
    tracker.update(x)
    assert np.array_equal(tracker.bound().numpy(), np.abs(x.numpy()).max(axis=(0, 2, 3)))


@given(st.integers(1, 24), st.permutations(range(24)), st.sampled_from(["maximum", "quantile", "moments"]))
def test_batches_and_order_do_not_matter(size, order, kind):
    x = activations()
    whole, parts = make_tracker(kind), make_tracker(kind)
    whole.update(x)
    for part in x[list(order)].split(size):
        parts.update(part)
    assert torch.equal(whole.bound(), parts.bound())


@given(st.floats(0.001, 1.0), st.integers(0, 50), st.floats(1e-6, 1e6))
def test_the_quantile_is_above_the_exact_one_by_at_most_its_stated_error(quantile, seed, scale):
    x = activations(seed) * scale
    tracker = Quantile(quantile, CPU)
    for part in x.split(7):
        tracker.update(part)
    magnitudes = np.sort(np.abs(x.numpy()), axis=None)
    exact = magnitudes[int(np.ceil(quantile * magnitudes.size)) - 1]  # the inverted-cdf definition
    assert exact <= tracker.bound().item() <= max(exact * (1 + 2**-10), 2**-31)


def test_the_full_quantile_is_the_maximum():
    x = activations()
    tracker = Quantile(1.0, CPU)
    tracker.update(x)
    assert tracker.bound().item() == x.abs().max().item()


def test_a_quantile_of_zeros_is_zero_and_of_huge_values_the_maximum():
    zeros, huge = Quantile(0.9, CPU), Quantile(0.9, CPU)
    zeros.update(torch.zeros(100))
    huge.update(torch.full((100,), 1e20))
    assert zeros.bound().item() == 0
    assert huge.bound().item() == torch.tensor(1e20).item()


def test_moments_are_numpys():
    x = activations() + 100  # a large mean: naive float32 sums would lose the deviation
    tracker = Moments(5, -3, CPU)
    for part in x.split(7):
        tracker.update(part)
    wide = x.double().numpy()
    np.testing.assert_allclose(tracker.centre().numpy(), wide.mean(axis=(0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(tracker.bound().numpy(), wide.std(axis=(0, 2, 3)), rtol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "make", [lambda: Maximum(torch.zeros(())), lambda: Quantile(0.5, CPU), lambda: Moments(5, -3, CPU)]
)
def test_a_non_finite_value_shows_in_the_peak(make, bad):
    x, tracker = activations(), make()
    x[3, 2, 1, 1] = bad
    tracker.update(x)
    tracker.update(activations(1))
    assert not tracker.peak().isfinite()
