"""The geometry of each norm against brute force and general solvers, and as properties over random inputs."""

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any, Literal, get_args

import eagerpy as ep
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from lipforge import rng
from lipforge.attacks import APGD, CW, FAB, FGSM, PGD, Square, TargetedAPGD, fast, norms
from lipforge.errors import InputError
from lipforge.types import Norm, Threat
from tests.attacks.oracles import small_images, small_net
from tests.attacks.peers import foolbox

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
    inside = norms.of(norm).project(far, x, eps)
    assert norm_of(inside - x, norm).max() <= eps * (1 + 1e-12)
    assert inside.min() >= 0
    assert inside.max() <= 1


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_a_point_that_is_inside_already_stays_where_it_is(norm):
    x = images(0)
    inside = norms.of(norm).project(x + 0.01, x, 0.5).clamp(max=1.0)
    torch.testing.assert_close(norms.of(norm).project(inside, x, 0.5), inside, rtol=0, atol=1e-15)


def test_the_linf_projection_is_the_nearest_point():
    x, far = images(0)[:1], images(1)[:1] * 3 - 1
    found = norms.of("linf").project(far, x, 0.2).flatten()
    bounds = [(max(0.0, value - 0.2), min(1.0, value + 0.2)) for value in x.flatten().tolist()]
    nearest = optimize.minimize(
        lambda z: ((z - far.flatten().numpy()) ** 2).sum(), x.flatten().numpy(), bounds=bounds, method="L-BFGS-B"
    )
    assert found.tolist() == pytest.approx(nearest.x.tolist(), abs=1e-6)


@pytest.mark.parametrize("eps", [0.1, 0.5, 1.5])
def test_the_l1_projection_is_the_nearest_point(eps):
    x, far = images(0), images(1) * 3 - 1
    found = norms.of("l1").project(far, x, eps)
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


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2), ("l1", torch.inf)])
def test_no_change_of_that_norm_raises_a_linear_function_more_than_the_steepest_step(norm, dual):
    gradient = images(2) - 0.5  # so small that a step in l1 changes one entry only
    step = norms.of(norm).steepest_step(gradient, 0.3)
    torch.testing.assert_close(norm_of(step, norm), torch.full((40,), 0.3, dtype=torch.float64))
    most = gradient.flatten(1).norm(p=dual, dim=1)
    torch.testing.assert_close((gradient * step).flatten(1).sum(dim=1), 0.3 * most)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 6, 6)])
def test_an_l1_step_is_that_of_sparse_l1_descent_in_foolbox(shape):
    gradient = rng.normal(0, IDS[:5], stream="gradient", shape=shape, dtype=torch.float64)
    x = rng.uniform(0, IDS[:5], stream="x", shape=shape, low=-0.5, high=1.5, dtype=torch.float64).clamp(0, 1)
    peer, bounds = foolbox.attacks.SparseL1DescentAttack(quantile=0.99), foolbox.types.Bounds(0, 1)
    step = 3 * peer.normalize(ep.astensor(gradient), x=ep.astensor(x), bounds=bounds).raw
    assert not torch.allclose(step, norms.of("l1").steepest_step(gradient, 3.0))  # many pixels are 0 or 1
    torch.testing.assert_close(norms.of("l1").step(x, gradient, 3.0, x, 3.0), (x + step).clamp(0, 1))


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_a_zero_gradient_gives_no_step_and_a_tiny_one_a_full_step(norm):
    gradient = torch.zeros(2, 1, 2, 2)
    gradient[1] = 1e-30
    length = norm_of(norms.of(norm).steepest_step(gradient, 0.3), norm)
    assert length.tolist() == pytest.approx([0.0, 0.3])


def test_a_linf_start_is_uniform_in_the_cube():
    x = torch.full((1000, 1, 2, 2), 0.5)
    start = norms.of("linf").random_start(x, 0.1, seed=0, sample_ids=torch.arange(1000), stream="s")
    share = ((start - x) / 0.2 + 0.5).flatten().double().numpy()
    assert stats.kstest(share, "uniform").pvalue > 0.01


def test_an_l2_start_is_uniform_in_the_ball():
    x = torch.full((4000, 1, 2, 2), 0.5)
    start = norms.of("l2").random_start(x, 0.2, seed=0, sample_ids=torch.arange(4000), stream="s")
    change = (start - x).double()
    # In 4 dimensions the share of the ball's volume within a radius grows with its fourth power.
    assert stats.kstest(((norm_of(change, "l2") / 0.2) ** 4).numpy(), "uniform").pvalue > 0.01
    # The angle of two coordinates of a rotation-invariant point is uniform on the circle.
    angle = torch.atan2(change[:, 0, 0, 0], change[:, 0, 1, 1])
    assert stats.kstest((angle / (2 * torch.pi) + 0.5).numpy(), "uniform").pvalue > 0.01


def test_an_l1_start_is_uniform_in_the_ball():
    x = torch.full((4000, 1, 2, 2), 0.5)
    start = norms.of("l1").random_start(x, 0.2, seed=0, sample_ids=torch.arange(4000), stream="s")
    change = (start - x).double().flatten(1)
    length = change.abs().sum(dim=1)
    assert stats.kstest(((length / 0.2) ** 4).numpy(), "uniform").pvalue > 0.01
    # On a face of the ball, a simplex, each of 4 shares has the beta distribution of 1 and 3.
    assert stats.kstest((change[:, 0].abs() / length).numpy(), stats.beta(1, 3).cdf).pvalue > 0.01
    faces = ((change > 0) * torch.tensor([1, 2, 4, 8])).sum(dim=1).bincount(minlength=16)
    assert stats.chisquare(faces.numpy()).pvalue > 0.01


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_a_start_depends_on_the_image_id_and_not_on_the_batch(norm):
    x = images(0, dtype=torch.float32)
    together = norms.of(norm).random_start(x, 0.1, seed=0, sample_ids=IDS, stream="s")
    alone = norms.of(norm).random_start(x[9:10], 0.1, seed=0, sample_ids=IDS[9:10], stream="s")
    assert torch.equal(together[9:10], alone)
    assert norms.of(norm).random_start(x[:0], 0.1, seed=0, sample_ids=IDS[:0], stream="s").shape == (0, 1, 2, 2)


POINT = rng.uniform(0, IDS[:20], stream="point", shape=(6,), dtype=torch.float64)
NORMAL = rng.normal(0, IDS[:20], stream="normal", shape=(6,), dtype=torch.float64)
NORMAL[:, 5] = 0.0
CORNERS = rng.uniform(0, IDS[:20], stream="corner", shape=(6,), dtype=torch.float64)
EXCESS = (NORMAL * (POINT - CORNERS)).sum(dim=1)  # the hyperplane passes through another point of the box


def _least(row, norm):
    """The norm of the smallest change, from a linear program or a constrained least-squares problem."""
    point, normal, excess = (part[row].numpy() for part in (POINT, NORMAL, EXCESS))
    bounds = [(-value, 1 - value) for value in point]
    if norm == "linf":
        # min t  with  -t <= d_i <= t,  w.d = -excess
        eye, ones = np.eye(6), -np.ones((6, 1))
        sides = np.block([[eye, ones], [-eye, ones]])
        solved = optimize.linprog(
            [0] * 6 + [1],
            A_ub=sides,
            b_ub=np.zeros(12),
            A_eq=[[*normal, 0.0]],
            b_eq=[-excess],
            bounds=[*bounds, (0, None)],
        )
        return solved.fun
    if norm == "l1":
        # min sum of rises and falls  with  w.(rises - falls) = -excess
        bounds = [(0, 1 - value) for value in point] + [(0, value) for value in point]
        return optimize.linprog([1] * 12, A_eq=[[*normal, *-normal]], b_eq=[-excess], bounds=bounds).fun
    plane = {"type": "eq", "fun": lambda change: normal @ change + excess, "jac": lambda change: normal}
    start = (CORNERS - POINT)[row].numpy()
    solved = optimize.minimize(
        lambda change: change @ change,
        start,
        jac=lambda change: 2 * change,
        bounds=bounds,
        constraints=[plane],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return np.sqrt(solved.fun)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_the_change_reaches_the_hyperplane_inside_the_box_and_is_the_smallest_that_does(norm):
    change = norms.of(norm).to_hyperplane(POINT, NORMAL, EXCESS)
    torch.testing.assert_close((NORMAL * change).sum(dim=1), -EXCESS)
    assert (POINT + change).min() >= -1e-15
    assert (POINT + change).max() <= 1 + 1e-15
    size = norm_of(change, norm)
    # The solvers stop at tolerances near 1e-7.
    assert size.tolist() == pytest.approx([_least(row, norm) for row in range(20)], rel=1e-5)
    # In some rows the box binds, or this would only test a formula without it.
    assert ((POINT + change - 0.5).abs() > 0.5 - 1e-12).any(dim=1).sum() >= 3


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_a_hyperplane_out_of_reach_sends_the_point_to_the_nearest_corner(norm):
    excess = torch.full((20,), 100.0, dtype=torch.float64)
    corner = POINT + norms.of(norm).to_hyperplane(POINT, NORMAL, excess)
    moving = NORMAL != 0
    torch.testing.assert_close(corner[moving], (NORMAL < 0).double()[moving])


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_a_gradient_of_zero_moves_nothing_and_gives_no_nan(norm):
    change = norms.of(norm).to_hyperplane(POINT.float(), torch.zeros(20, 6), torch.ones(20))
    assert torch.equal(change, torch.zeros(20, 6))


def test_every_norm_of_a_threat_has_its_geometry_and_no_other_name_falls_through_to_one():
    for name in get_args(Norm):
        geometry = norms.of(Threat(name, 0.1))
        assert geometry.name == name
        assert norm_of(images(3), name).tolist() == pytest.approx(geometry.distance(images(3)).tolist())
    with pytest.raises(InputError, match="norm must be one of linf, l2, l1, got 'l0'"):
        norms.of("l0")


@pytest.mark.parametrize("like", ["linf", "l2", "l1"])
def test_a_new_norm_is_one_module_and_one_name_and_every_attack_takes_it_at_its_word(like, monkeypatch):
    """The geometry of a known norm under a new name: whatever looked at the name would do something else."""
    model = small_net()
    x, y = small_images(model, 12)
    name = f"new_{like}"
    module = ModuleType(f"lipforge.attacks.norms.{name}")
    monkeypatch.setattr(module, "NORM", replace(norms.of(like), name=name), raising=False)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("lipforge.types.Norm", Literal["linf", "l2", "l1", "new_linf", "new_l2", "new_l1"])
    attacks = (FGSM(), PGD(steps=2), FAB(steps=2, restarts=2), FAB(steps=2, targets=0), APGD(steps=4), fast())
    cw = () if like == "l1" else (CW(steps=2),)
    for attack in (*attacks, TargetedAPGD(steps=4, order="nearest"), Square(queries=4), *cw):
        eps = {"linf": 0.02, "l2": 0.2, "l1": 1.0}[like]
        threats: list[Any] = [like, name]
        expected, found = (attack.run(model, x, y, threat=Threat(each, eps)) for each in threats)
        assert torch.equal(found.images, expected.images), attack
        assert found.outcome == expected.outcome, attack
        assert torch.equal(found.forwards, expected.forwards), attack
