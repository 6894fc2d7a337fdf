"""The geometry of a threat: its projection, steepest step and random start. Nowhere else do norms differ."""

import math

import torch
from torch import Tensor

from lipforge import rng
from lipforge.errors import InputError
from lipforge.types import Threat


def project(x_adv: Tensor, x: Tensor, threat: Threat) -> Tensor:
    """`x_adv` brought into the ball around `x` and into [0, 1].

    For linf and l1 it is the nearest such point. For l2 it shrinks onto the ball first and clamps to [0, 1] after,
    which keeps it in the ball, because `x` lies in [0, 1].
    """
    if threat.norm == "l1":
        return project_l1(x_adv, x, threat.eps)
    if threat.norm == "linf":
        return torch.minimum(torch.maximum(x_adv, x - threat.eps), x + threat.eps).clamp(0.0, 1.0)
    change = x_adv - x
    shrink = (threat.eps / _length(change).clamp_min(1e-12)).clamp_max(1.0)
    return (x + change * shrink).clamp(0.0, 1.0)


def project_l1(x_adv: Tensor, x: Tensor, eps: float) -> Tensor:
    """The nearest point to `x_adv` in the l1 ball of radius eps around `x` and in [0, 1].

    The change d has the signs of y = x_adv - x, and |d_i| = min(max(|y_i| - cut, 0), room_i) with room_i the distance
    to the box on that side. The sum of |d_i| falls as the cut rises: bisection finds the piece, a division the cut.
    """
    change = (x_adv - x).flatten(1)
    size = change.abs()
    room = torch.where(change > 0, 1 - x.flatten(1), x.flatten(1))
    low = torch.zeros_like(size[:, :1])
    high = torch.where(torch.minimum(size, room).sum(1, keepdim=True) > eps, size.amax(1, keepdim=True), low)
    for _ in range(30):
        middle = (low + high) / 2
        over = torch.minimum((size - middle).clamp_min(0.0), room).sum(dim=1, keepdim=True) > eps
        low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    free = (size > high) & (size - high < room)
    capped = torch.where(size - high >= room, room, 0.0).sum(dim=1, keepdim=True)
    exact = ((size * free).sum(1, keepdim=True) + capped - eps) / free.sum(1, keepdim=True).clamp_min(1)
    cut = torch.minimum(torch.maximum(exact, low), high)
    kept = torch.minimum((size - cut).clamp_min(0.0), room)
    return (x + (change.sign() * kept).reshape(x.shape)).clamp(0.0, 1.0)


def steepest_step(gradient: Tensor, threat: Threat, size: float | Tensor) -> Tensor:
    """The change of norm `size` that raises a linear function of that gradient most; 0 where the gradient is 0."""
    if threat.norm == "linf":
        return size * gradient.sign()
    refuse_l1(threat)
    # Scaled by the largest entry first: the squares of a tiny gradient would underflow to a length of 0.
    scaled = gradient / gradient.abs().flatten(1).amax(dim=1).clamp_min(1e-38)[:, None, None, None]
    return size * scaled / _length(scaled).clamp_min(1e-12)


def random_start(x: Tensor, threat: Threat, *, seed: int, sample_ids: Tensor, stream: str, counter: int = 0) -> Tensor:
    """A point uniform in the ball around `x`, clamped to [0, 1]."""
    shape = tuple(x.shape[1:])
    if threat.norm == "linf":
        noise = rng.uniform(
            seed, sample_ids, stream=stream, shape=shape, low=-1.0, high=1.0, counter=counter, dtype=x.dtype
        )
        return project(x + threat.eps * noise, x, threat)
    refuse_l1(threat)
    direction = rng.normal(seed, sample_ids, stream=stream, shape=shape, counter=counter, dtype=x.dtype)
    share = rng.uniform(seed, sample_ids, stream=f"{stream}/radius", shape=(1, 1, 1), counter=counter, dtype=x.dtype)
    radius = threat.eps * share ** (1.0 / math.prod(shape))
    return project(x + direction * (radius / _length(direction)), x, threat)


def edge_start(
    x: Tensor, threat: Threat, *, seed: int, sample_ids: Tensor, stream: str, counter: int | Tensor = 0
) -> Tensor:
    """A random point at distance eps from `x`, clamped to [0, 1]: uniform noise over its largest entry, or Gaussian.

    For l1 it is where standard Gaussian noise projects to, which changes few entries, and most of them up to the box.
    """
    shape = tuple(x.shape[1:])
    if threat.norm == "linf":
        noise = rng.uniform(
            seed, sample_ids, stream=stream, shape=shape, low=-1.0, high=1.0, counter=counter, dtype=x.dtype
        )
    else:
        noise = rng.normal(seed, sample_ids, stream=stream, shape=shape, counter=counter, dtype=x.dtype)
    if threat.norm == "l1":
        return project(x + noise, x, threat)
    return project(x + noise * (threat.eps / distance(noise, threat)[:, None, None, None].clamp_min(1e-12)), x, threat)


def distance(change: Tensor, threat: Threat) -> Tensor:
    """The norm (N,) of a change, in the threat's norm."""
    if threat.norm == "linf":
        return change.abs().flatten(1).amax(dim=1)
    return change.abs().flatten(1).sum(dim=1) if threat.norm == "l1" else _length(change).flatten()


def dual_size(gradient: Tensor, threat: Threat) -> Tensor:
    """How much (N,) a linear function of that gradient rises over a ball of radius 1: its l1, l2 or linf norm."""
    if threat.norm == "linf":
        return gradient.abs().flatten(1).sum(dim=1)
    return gradient.abs().flatten(1).amax(dim=1) if threat.norm == "l1" else _length(gradient).flatten()


def inside(x_adv: Tensor, x: Tensor, threat: Threat) -> Tensor:
    """Which images (N,) lie in [0, 1] and in the ball, up to the rounding of x + eps in the images' own dtype."""
    # Entries are rounded one by one; for l1 the norm, which may be large, adds their errors up.
    slack = 16 * torch.finfo(x.dtype).eps * (max(threat.eps, 1.0) if threat.norm == "l1" else 1.0)
    in_range = ((x_adv >= 0) & (x_adv <= 1)).flatten(1).all(dim=1)
    return in_range & (distance(x_adv - x, threat) <= threat.eps + slack)


def _length(change: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(change, dim=(1, 2, 3), keepdim=True)
    return length


def refuse_l1(threat: Threat) -> None:
    """Raise for the norm that only APGD and Square know."""
    if threat.norm == "l1":
        raise InputError("this attack knows the norms linf and l2, got l1; apgd, apgd-t and square know l1")
