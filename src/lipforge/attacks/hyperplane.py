"""The nearest point of a hyperplane inside the unit box, in closed form."""

import torch
from torch import Tensor

from lipforge.types import Threat


def to_hyperplane(point: Tensor, normal: Tensor, excess: Tensor, threat: Threat) -> Tensor:
    """The smallest change (N, D) that takes `point` (N, D) onto a hyperplane without leaving [0, 1].

    `normal` (N, D) is the hyperplane's normal w and `excess` (N,) is w.x - b at the point. Entry i moves against the
    excess by min(t v_i, room_i), where room_i is its distance to the box and v_i is 1 for linf and |w_i| for l2. The
    excess this removes, the sum of |w_i| min(t v_i, room_i), is concave and piecewise linear in t. Newton's method from
    t = 0 never passes the solution, because a tangent lies above a concave function, and ends on the right piece after
    as many steps as there are pieces at most; a few in practice, since few entries reach the box. Where even the corner
    of the box is on the near side, the change goes to that corner.
    """
    weight = normal.abs()
    direction = -excess.sign()[:, None] * normal.sign()
    # An entry that does not count does not move: it has no room.
    room = torch.where(direction > 0, 1 - point, point) * (direction != 0)
    speed = torch.ones_like(weight) if threat.norm == "linf" else weight
    gain, at_stop = weight * speed, weight * room
    need = excess.abs()[:, None]
    time = torch.zeros_like(need)
    for _ in range(point.shape[1] + 1):
        moving = time * speed < room
        slope = (gain * moving).sum(dim=1, keepdim=True)
        stopped = (at_stop * ~moving).sum(dim=1, keepdim=True)
        later = torch.where(slope > 0, (need - stopped) / slope.clamp_min(1e-38), time)
        if not (later > time).any():
            break
        time = torch.maximum(time, later)
    # Where nothing moves any more the corner is reached, and a longer time changes nothing.
    return direction * torch.minimum(time * speed, room)
