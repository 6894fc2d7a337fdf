"""The geometry of a threat: its projection, steepest step and random start. Nowhere else do norms differ."""

import torch
from torch import Tensor

from lipforge import rng
from lipforge.errors import InputError
from lipforge.types import Threat


def project(x_adv: Tensor, x: Tensor, threat: Threat) -> Tensor:
    """`x_adv` brought into the ball around `x` and into [0, 1].

    For linf it is the nearest such point. For l2 it shrinks onto the ball first and clamps to [0, 1] after, which
    keeps it in the ball, because `x` lies in [0, 1].
    """
    if threat.norm == "linf":
        return torch.minimum(torch.maximum(x_adv, x - threat.eps), x + threat.eps).clamp(0.0, 1.0)
    _only_l2(threat)
    change = x_adv - x
    shrink = (threat.eps / _length(change).clamp_min(1e-12)).clamp_max(1.0)
    return (x + change * shrink).clamp(0.0, 1.0)


def steepest_step(gradient: Tensor, threat: Threat, size: float | Tensor) -> Tensor:
    """The change of norm `size` that raises a linear function of that gradient most; 0 where the gradient is 0."""
    if threat.norm == "linf":
        return size * gradient.sign()
    _only_l2(threat)
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
    _only_l2(threat)
    direction = rng.normal(seed, sample_ids, stream=stream, shape=shape, counter=counter, dtype=x.dtype)
    share = rng.uniform(seed, sample_ids, stream=f"{stream}/radius", shape=(1, 1, 1), counter=counter, dtype=x.dtype)
    radius = threat.eps * share ** (1.0 / x[0].numel())
    return project(x + direction * (radius / _length(direction)), x, threat)


def edge_start(x: Tensor, threat: Threat, *, seed: int, sample_ids: Tensor, stream: str, counter: int = 0) -> Tensor:
    """A random point at distance eps from `x`, clamped to [0, 1]: uniform noise over its largest entry, or Gaussian."""
    shape = tuple(x.shape[1:])
    if threat.norm == "linf":
        noise = rng.uniform(
            seed, sample_ids, stream=stream, shape=shape, low=-1.0, high=1.0, counter=counter, dtype=x.dtype
        )
    else:
        noise = rng.normal(seed, sample_ids, stream=stream, shape=shape, counter=counter, dtype=x.dtype)
    return project(x + noise * (threat.eps / distance(noise, threat)[:, None, None, None].clamp_min(1e-12)), x, threat)


def distance(change: Tensor, threat: Threat) -> Tensor:
    """The norm (N,) of a change, in the threat's norm."""
    if threat.norm == "linf":
        return change.abs().flatten(1).amax(dim=1)
    _only_l2(threat)
    return _length(change).flatten()


def dual_size(gradient: Tensor, threat: Threat) -> Tensor:
    """How much (N,) a linear function of that gradient rises over a ball of radius 1: its l1 or l2 norm."""
    if threat.norm == "linf":
        return gradient.abs().flatten(1).sum(dim=1)
    _only_l2(threat)
    return _length(gradient).flatten()


def inside(x_adv: Tensor, x: Tensor, threat: Threat) -> Tensor:
    """Which images (N,) lie in [0, 1] and in the ball, up to the rounding of x + eps in the images' own dtype."""
    slack = 16 * torch.finfo(x.dtype).eps
    in_range = ((x_adv >= 0) & (x_adv <= 1)).flatten(1).all(dim=1)
    return in_range & (distance(x_adv - x, threat) <= threat.eps + slack)


def _length(change: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(change, dim=(1, 2, 3), keepdim=True)
    return length


def _only_l2(threat: Threat) -> None:
    if threat.norm != "l2":
        raise InputError(f"this attack knows the norms linf and l2, got {threat.norm}")
