"""The geometry of a threat, one file per norm; nowhere else do norms differ.

A new norm is a file `norms/<name>.py` with an object `NORM`, and its name in `lipforge.types.Norm`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import cast, get_args

import torch
from torch import Tensor

from lipforge import rng, types
from lipforge.errors import InputError


@dataclass(frozen=True)
class Norm:
    """What attacks need to know about a norm. Images are (N, C, H, W), and changes are differences of images.

    `order` is the p of the l_p norm. Three traits choose the form of an attack: `box` (the ball is a box, so Square
    fills windows with its faces), `smooth` (the squared norm has a gradient, so CW can minimise it) and `sparse` (the
    best changes are sparse, so all steps are sparse). `noise` draws random numbers: Gaussian, so that every direction
    is equally likely.
    """

    name: types.Norm
    order: float
    box: bool = False
    smooth: bool = False
    sparse: bool = False
    noise: Callable[..., Tensor] = rng.normal

    def project(self, x_adv: Tensor, x: Tensor, eps: float | Tensor) -> Tensor:
        """`x_adv` brought into the ball around `x` and into [0, 1]; `eps` may be one for each image, (N, 1, 1, 1)."""
        raise NotImplementedError

    def distance(self, change: Tensor) -> Tensor:
        """The norm (N,) of a change."""
        return _size(change, self.order)

    def dual_size(self, gradient: Tensor) -> Tensor:
        """How much (N,) a linear function of that gradient rises over a ball of radius 1: its dual norm."""
        return _size(gradient, math.inf if self.order == 1 else 1 / (1 - 1 / self.order))

    def steepest_step(self, gradient: Tensor, size: float | Tensor) -> Tensor:
        """The change of norm `size` that raises a linear function of that gradient most; 0 where the gradient is 0.

        In l1 that would be a single entry, which the box soon stops; there it is spread over a few entries.
        """
        raise NotImplementedError

    def random_start(
        self, x: Tensor, eps: float, *, seed: int, sample_ids: Tensor, stream: str, counter: int = 0
    ) -> Tensor:
        """A point uniform in the ball around `x`, clamped to [0, 1]."""
        raise NotImplementedError

    def to_hyperplane(self, point: Tensor, normal: Tensor, excess: Tensor) -> Tensor:
        """The smallest change (N, D) that takes `point` (N, D) onto a hyperplane without leaving [0, 1].

        `normal` (N, D) is the hyperplane's normal w and `excess` (N,) is w.x - b at the point.
        """
        raise NotImplementedError

    def edge_start(
        self, x: Tensor, eps: float, *, seed: int, sample_ids: Tensor, stream: str, counter: int | Tensor = 0
    ) -> Tensor:
        """A random point at distance eps from `x`, clamped to [0, 1].

        In a sparse norm it is where the noise projects to: few entries change, and most of them up to the box.
        """
        noise = self.noise(seed, sample_ids, stream=stream, shape=x.shape[1:], counter=counter, dtype=x.dtype)
        if not self.sparse:
            noise = noise * (eps / self.distance(noise)[:, None, None, None].clamp_min(1e-12))
        return self.project(x + noise, x, eps)

    def step(self, point: Tensor, gradient: Tensor, size: float | Tensor, x: Tensor, eps: float | Tensor) -> Tensor:
        """`point` after a steepest step of norm `size`, projected."""
        return self.project(point + self.steepest_step(gradient, size), x, eps)

    def inside(self, x_adv: Tensor, x: Tensor, eps: float) -> Tensor:
        """Which images (N,) lie in [0, 1] and in the ball, up to the rounding of x + eps in the images' own dtype."""
        in_range = ((x_adv >= 0) & (x_adv <= 1)).flatten(1).all(dim=1)
        return in_range & (self.distance(x_adv - x) <= eps + self.slack(eps, x.dtype))

    def slack(self, eps: float, dtype: torch.dtype) -> float:
        """By how much a distance may exceed eps, for rounding in images of that dtype."""
        # A norm that adds up the sizes of all entries, and may be large, adds up their errors too.
        return 16 * torch.finfo(dtype).eps * (max(eps, 1.0) if self.order == 1 else 1.0)


@cache
def of(threat: types.Threat | str) -> Norm:
    """The norm of a threat, or the norm of that name."""
    name = threat if isinstance(threat, str) else threat.norm
    if name not in get_args(types.Norm):
        raise InputError(f"norm must be one of {', '.join(get_args(types.Norm))}, got {name!r}")
    return cast(Norm, import_module(f"{__name__}.{name}").NORM)


def _size(change: Tensor, order: float) -> Tensor:
    """The l_p norm (N,) of each image."""
    if order == 1:
        return change.abs().flatten(1).sum(dim=1)
    if order == math.inf:  # torch's own is 14 times as slow on a CPU
        return change.abs().flatten(1).amax(dim=1)
    size: Tensor = torch.linalg.vector_norm(change, order, dim=(1, 2, 3))
    return size


def toward_hyperplane(point: Tensor, normal: Tensor, excess: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How much each entry (N, D) counts, which way it moves toward the hyperplane, and how far the box lets it."""
    direction = -excess.sign()[:, None] * normal.sign()
    # 1 - x on the way up, x on the way down; an entry that does not count does not move, so it has no room.
    room = direction.clamp_min(0.0) - direction * point
    return normal.abs(), direction, room


def nearest_on_hyperplane(point: Tensor, normal: Tensor, excess: Tensor, speed: Tensor) -> Tensor:
    """`Norm.to_hyperplane` for a norm whose best change moves entry i by min(t `speed`_i, room_i).

    room_i is the entry's distance to the box. The excess this removes, the sum of |w_i| min(t v_i, room_i), is concave
    and piecewise linear in t. Newton's method from t = 0 never passes the solution, because a tangent lies above a
    concave function, and ends on the right piece after as many steps as there are pieces at most; a few in practice,
    since few entries reach the box. Where even the corner of the box is on the near side, the change goes to that
    corner.
    """
    weight, direction, room = toward_hyperplane(point, normal, excess)
    gain, at_stop = weight * speed, weight * room
    need = excess.abs()[:, None]
    time = torch.zeros_like(need)
    for _ in range(point.shape[1] + 1):
        moving = (room - time * speed).sign_().clamp_min_(0.0)  # 1 or 0: sums of products are faster than of choices
        slope = (gain * moving).sum(dim=1, keepdim=True)
        stopped = (at_stop * (1 - moving)).sum(dim=1, keepdim=True)
        later = torch.where(slope > 0, (need - stopped) / slope.clamp_min(1e-38), time)
        if not (later > time).any():
            break
        time = torch.maximum(time, later)
    # Where nothing moves any more the corner is reached, and a longer time changes nothing.
    return direction * torch.minimum(time * speed, room)


def sparse_step(gradient: Tensor, size: float | Tensor, count: Tensor) -> Tensor:
    """A change of l1 norm `size`, spread evenly over the `count` (N,) entries with the largest gradients, and ties."""
    slope = gradient.flatten(1).abs()
    least = slope.sort(dim=1, descending=True).values.gather(1, count[:, None] - 1)
    sign = gradient.sign() * (slope >= least).reshape(gradient.shape)
    return size * sign / sign.abs().sum(dim=(1, 2, 3), keepdim=True).clamp_min(1.0)
