"""The nearest point of a hyperplane in the box, against general solvers."""

import numpy as np
import pytest
import torch
from scipy import optimize

from lipforge import rng
from lipforge.attacks.hyperplane import to_hyperplane
from lipforge.types import Threat

IDS = torch.arange(20)
POINT = rng.uniform(0, IDS, stream="point", shape=(6,), dtype=torch.float64)
NORMAL = rng.normal(0, IDS, stream="normal", shape=(6,), dtype=torch.float64)
NORMAL[:, 5] = 0.0
CORNERS = rng.uniform(0, IDS, stream="corner", shape=(6,), dtype=torch.float64)
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


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_change_reaches_the_hyperplane_inside_the_box_and_is_the_smallest_that_does(norm):
    change = to_hyperplane(POINT, NORMAL, EXCESS, Threat(norm, 1.0))
    torch.testing.assert_close((NORMAL * change).sum(dim=1), -EXCESS)
    assert (POINT + change).min() >= -1e-15
    assert (POINT + change).max() <= 1 + 1e-15
    size = change.abs().amax(dim=1) if norm == "linf" else change.norm(dim=1)
    # The solvers stop at tolerances near 1e-7.
    assert size.tolist() == pytest.approx([_least(row, norm) for row in range(20)], rel=1e-5)
    # In some rows the box binds, or this would only test a formula without it.
    assert ((POINT + change - 0.5).abs() > 0.5 - 1e-12).any(dim=1).sum() >= 3


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_hyperplane_out_of_reach_sends_the_point_to_the_nearest_corner(norm):
    excess = torch.full((20,), 100.0, dtype=torch.float64)
    corner = POINT + to_hyperplane(POINT, NORMAL, excess, Threat(norm, 1.0))
    moving = NORMAL != 0
    torch.testing.assert_close(corner[moving], (NORMAL < 0).double()[moving])


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_gradient_of_zero_moves_nothing_and_gives_no_nan(norm):
    change = to_hyperplane(POINT.float(), torch.zeros(20, 6), torch.ones(20), Threat(norm, 1.0))
    assert torch.equal(change, torch.zeros(20, 6))
