"""Projections, steps and starts against brute force, and as properties over random inputs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from lipforge import rng
from lipforge.attacks.norms import project, random_start, steepest_step
from lipforge.errors import InputError
from lipforge.types import Threat

IDS = torch.arange(40)


def norm_of(change, norm):
    return torch.linalg.vector_norm(change.flatten(1), {"linf": torch.inf, "l2": 2, "l1": 1}[norm], dim=1)


def images(seed, *, dtype=torch.float64):
    return rng.uniform(seed, IDS, stream="images", shape=(1, 2, 2), dtype=dtype)


@given(seed=st.integers(0, 2**31), eps=st.floats(1e-3, 1.0), norm=st.sampled_from(["linf", "l2", "l1"]))
@settings(max_examples=50, deadline=None)
def test_a_projected_point_lies_in_the_ball_and_in_the_unit_range(seed, eps, norm):
    x = images(seed)
    far = rng.uniform(seed, IDS, stream="far", shape=(1, 2, 2), low=-3.0, high=4.0, dtype=torch.float64)
    inside = project(far, x, Threat(norm, eps))
    assert norm_of(inside - x, norm).max() <= eps * (1 + 1e-12)
    assert inside.min() >= 0
    assert inside.max() <= 1


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_a_point_that_is_inside_already_stays_where_it_is(norm):
    x = images(0)
    inside = project(x + 0.01, x, Threat(norm, 0.5)).clamp(max=1.0)
    torch.testing.assert_close(project(inside, x, Threat(norm, 0.5)), inside, rtol=0, atol=1e-15)


def test_the_linf_projection_is_the_nearest_point():
    x, far = images(0)[:1], images(1)[:1] * 3 - 1
    found = project(far, x, Threat("linf", 0.2)).flatten()
    bounds = [(max(0.0, value - 0.2), min(1.0, value + 0.2)) for value in x.flatten().tolist()]
    nearest = optimize.minimize(
        lambda z: ((z - far.flatten().numpy()) ** 2).sum(), x.flatten().numpy(), bounds=bounds, method="L-BFGS-B"
    )
    assert found.tolist() == pytest.approx(nearest.x.tolist(), abs=1e-6)


@pytest.mark.parametrize("eps", [0.1, 0.5, 1.5])
def test_the_l1_projection_is_the_nearest_point(eps):
    x, far = images(0), images(1) * 3 - 1
    found = project(far, x, Threat("l1", eps))
    for row in range(8):
        start, goal = x[row].flatten().numpy(), far[row].flatten().numpy()
        # Split into rises and falls, so that the l1 norm is linear.
        bounds = [(0.0, 1 - value) for value in start] + [(0.0, value) for value in start]
        nearest = optimize.minimize(
            lambda z, start=start, goal=goal: ((start + z[:4] - z[4:] - goal) ** 2).sum(),
            [0.01] * 8,
            bounds=bounds,
            constraints={"type": "ineq", "fun": lambda z: eps - z.sum()},
            options={"ftol": 1e-14, "maxiter": 500},
        )
        expected = start + nearest.x[:4] - nearest.x[4:]
        assert found[row].flatten().tolist() == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_no_change_of_that_norm_raises_a_linear_function_more_than_the_steepest_step(norm):
    gradient = images(2) - 0.5
    step = steepest_step(gradient, Threat(norm, 1.0), 0.3)
    torch.testing.assert_close(norm_of(step, norm), torch.full((40,), 0.3, dtype=torch.float64))
    dual = gradient.flatten(1).norm(p=1 if norm == "linf" else 2, dim=1)
    torch.testing.assert_close((gradient * step).flatten(1).sum(dim=1), 0.3 * dual)


def test_a_zero_gradient_gives_no_step_and_a_tiny_one_a_full_step():
    gradient = torch.zeros(2, 1, 2, 2)
    gradient[1] = 1e-30
    length = norm_of(steepest_step(gradient, Threat("l2", 1.0), 0.3), "l2")
    assert length.tolist() == pytest.approx([0.0, 0.3])


def test_a_linf_start_is_uniform_in_the_cube():
    x = torch.full((1000, 1, 2, 2), 0.5)
    start = random_start(x, Threat("linf", 0.1), seed=0, sample_ids=torch.arange(1000), stream="s")
    share = ((start - x) / 0.2 + 0.5).flatten().double().numpy()
    assert stats.kstest(share, "uniform").pvalue > 0.01


def test_an_l2_start_is_uniform_in_the_ball():
    x = torch.full((4000, 1, 2, 2), 0.5)
    start = random_start(x, Threat("l2", 0.2), seed=0, sample_ids=torch.arange(4000), stream="s")
    change = (start - x).double()
    # In 4 dimensions the share of the ball's volume within a radius grows with its fourth power.
    assert stats.kstest(((norm_of(change, "l2") / 0.2) ** 4).numpy(), "uniform").pvalue > 0.01
    # The angle of two coordinates of a rotation-invariant point is uniform on the circle.
    angle = torch.atan2(change[:, 0, 0, 0], change[:, 0, 1, 1])
    assert stats.kstest((angle / (2 * torch.pi) + 0.5).numpy(), "uniform").pvalue > 0.01


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_start_depends_on_the_image_id_and_not_on_the_batch(norm):
    x = images(0, dtype=torch.float32)
    together = random_start(x, Threat(norm, 0.1), seed=0, sample_ids=IDS, stream="s")
    alone = random_start(x[9:10], Threat(norm, 0.1), seed=0, sample_ids=IDS[9:10], stream="s")
    assert torch.equal(together[9:10], alone)
    assert random_start(x[:0], Threat(norm, 0.1), seed=0, sample_ids=IDS[:0], stream="s").shape == (0, 1, 2, 2)


def test_the_l1_norm_has_no_dense_steepest_step():
    with pytest.raises(InputError, match="linf and l2, got l1"):
        steepest_step(images(0), Threat("l1", 1.0), 0.1)
