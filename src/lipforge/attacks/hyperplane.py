"""The nearest point of a hyperplane inside the unit box, in closed form."""

import torch
from torch import Tensor

from lipforge.types import Threat


def to_hyperplane(point: Tensor, normal: Tensor, excess: Tensor, threat: Threat) -> Tensor:
    """The smallest change (N, D) that takes `point` (N, D) onto a hyperplane without leaving [0, 1].

    `normal` (N, D) is the hyperplane's normal w and `excess` (N,) is w.x - b at the point. Entry i moves against the
    excess by min(t v_i, room_i), where room_i is its distance to the box and v_i is 1 for linf and |w_i| for l2. The
    excess this removes, the sum of |w_i| min(t v_i, room_i), is concave and piecewise linear in t; we sort the
    t_i = room_i / v_i at which entries reach the box and solve on the right piece. Where even the corner of the box is
    on the near side, the change goes to that corner.
    """
    weight = normal.abs()
    direction = -excess.sign()[:, None] * normal.sign()
    room = torch.where(direction > 0, 1 - point, point)
    speed = torch.ones_like(weight) if threat.norm == "linf" else weight
    moves = weight > 0
    stops = torch.where(moves, room / speed.clamp_min(1e-38), 0.0)
    order = stops.argsort(dim=1)
    stops = stops.gather(1, order)
    at_stop = (weight * room).gather(1, order)
    stopped = at_stop.cumsum(dim=1) - at_stop
    slope = (weight * speed).gather(1, order).flip(1).cumsum(dim=1).flip(1)
    need = excess.abs()[:, None]
    piece = (stopped + slope * stops < need).sum(dim=1, keepdim=True).clamp_max(point.shape[1] - 1)
    time = (need - stopped.gather(1, piece)) / slope.gather(1, piece).clamp_min(1e-38)
    # Past the last stop nothing moves any more; a finite time keeps 0 * time at 0.
    time = torch.minimum(time.clamp_min(0.0), stops[:, -1:])
    return direction * torch.minimum(time * speed, room)
