"""The perturbations that Square starts from, and the windows it changes in l2."""

import torch
from torch import Tensor

from lipforge import rng
from lipforge.attacks.norms import distance, project
from lipforge.types import Threat


def start_squares(x: Tensor, threat: Threat, *, seed: int, sample_ids: Tensor, stream: str) -> Tensor:
    """For linf, vertical stripes of +-eps, one sign per column and channel; otherwise a grid of 5 x 5 double bumps."""
    channels, height, width = x.shape[1:]
    if threat.norm == "linf":
        shape = (channels, 1, width)
        stripes = rng.signs(seed, sample_ids, stream=stream, shape=shape, dtype=x.dtype)
        return project(x + threat.eps * stripes, x, threat)
    side = max(min(height, width) // 5, 1)
    rows, columns = height // side, width // side
    signs = rng.signs(seed, sample_ids, stream=stream, shape=(channels, rows, columns), dtype=x.dtype)
    turns = rng.signs(seed, sample_ids, stream=f"{stream}-turns", shape=(1, rows, columns), dtype=x.dtype) > 0
    tile = double_bump(side, x)
    bumps = torch.where(turns[..., None, None], tile.T, tile) * signs[..., None, None]
    change = torch.zeros_like(x)
    top, left = (height - rows * side) // 2, (width - columns * side) // 2
    tiled = bumps.permute(0, 1, 2, 4, 3, 5).reshape(len(x), channels, rows * side, columns * side)
    change[:, :, top : top + rows * side, left : left + columns * side] = tiled
    return project(x + _unit(change, threat) * threat.eps, x, threat)


def turn_window(
    change: Tensor, fresh: Tensor, emptied: Tensor, signs: Tensor, side: int, turned: Tensor, threat: Threat
) -> Tensor:
    """`change` with the window `emptied` set to 0 and its length moved into the window `fresh`; of length eps.

    The masks are (M, 1, H, W). In the fresh window a double bump of random sign is added to the direction that was
    there; per channel it takes the length of both windows and what was left of eps. For l1 it takes as many times that
    as there are channels and is not scaled back: the projection that follows cuts all entries down, which drops the
    small ones.
    """
    power, channels = 1 if threat.norm == "l1" else 2, change.shape[1]
    left = (threat.eps**power - change.abs().pow(power).sum(dim=(1, 2, 3), keepdim=True)).clamp_min(0.0) / channels
    both = (change * (fresh | emptied)).abs().pow(power).sum(dim=(2, 3), keepdim=True)
    length = (left + both).pow(1 / power) * (channels if threat.norm == "l1" else 1)
    tile = double_bump(side, change)
    tiles = torch.where(turned[:, None, None, None], tile.T, tile)
    tiles = tiles / tiles.abs().pow(power).sum(dim=(2, 3), keepdim=True).pow(1 / power)
    new = _scaled(change * fresh, power) + signs * _place(tiles, fresh)
    mixed = torch.where(fresh, _scaled(new, power) * length, torch.where(emptied, 0.0, change))
    return mixed if threat.norm == "l1" else _unit(mixed, threat) * threat.eps


def double_bump(side: int, like: Tensor) -> Tensor:
    """A pattern (side, side) of length 1: a bump in the upper half, its negative in the lower half."""
    half = side // 2
    pattern = torch.cat([_bump(half, side), -_bump(side - half, side)]).to(like)
    return pattern / pattern.square().sum().sqrt()


def _bump(height: int, width: int) -> Tensor:
    """Concentric squares around the middle, the k-th of height 1 / k^2, added up; of length 1."""
    if height == 0:
        return torch.zeros(0, width)
    rings = 1.0 / torch.arange(1.0, max(height, width) // 2 + 2).square()
    covered = rings.flip(0).cumsum(0).flip(0)  # an entry at distance k is covered by the squares from the k-th on
    rows = (torch.arange(height) - height // 2).abs()[:, None]
    columns = (torch.arange(width) - width // 2).abs()[None, :]
    bump = covered[torch.maximum(rows, columns)]
    return bump / bump.square().sum().sqrt()


def _place(tiles: Tensor, mask: Tensor) -> Tensor:
    """The tiles (M, 1, s, s) where the windows (M, 1, H, W) are, 0 elsewhere; entries keep their row-major order."""
    placed = torch.zeros(mask.shape, dtype=tiles.dtype, device=tiles.device)
    placed[mask] = tiles.expand(len(mask), *tiles.shape[1:]).flatten()
    return placed


def _scaled(part: Tensor, power: int) -> Tensor:
    """Each channel at length 1, or 0 where it is 0."""
    return part / part.abs().pow(power).sum(dim=(2, 3), keepdim=True).pow(1 / power).clamp_min(1e-12)


def _unit(change: Tensor, threat: Threat) -> Tensor:
    return change / distance(change, threat)[:, None, None, None].clamp_min(1e-12)
