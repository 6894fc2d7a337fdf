"""Largest singular values by the Lanczos method, for many masks of one layer at once.

Lanczos spends the same products W^T W v as power iteration, but keeps the best answer of all of them: the top of the
spectrum of a conv is crowded, and power iteration needs hundreds of products where this takes tens. Every value is a
lower bound up to rounding, and comes with the residual |W^T W v - s^2 v|, relative to s^2: some eigenvalue lies within
it. Only the largest value is wanted, so lost orthogonality does no harm (Paige 1980).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lipforge import rng
from lipforge.analysis.operators import Operator

CHECK_EVERY = 5


@dataclass(frozen=True)
class Singular:
    """The largest singular value (M,) of each masked operator, its relative residual (M,), and the products taken."""

    values: Tensor
    residuals: Tensor
    steps: int


@torch.no_grad()
def largest_singular(
    operator: Operator, keep: Tensor, *, tolerance: float = 1e-3, steps: int = 100, seed: int = 0
) -> Singular:
    """The largest singular values of W diag(keep), one for each item of `keep` (M, *item).

    The start is random and the same for every item. It stops when every residual is at most `tolerance`, or after
    `steps` products.
    """
    start = rng.normal(seed, torch.zeros(1, dtype=torch.int64), stream="lanczos", shape=keep.shape[1:])
    # The mask of a start keeps it in the space where W diag(keep) can be large; elsewhere the map is 0.
    v = _unit(start.to(keep) * keep)[0]
    before, beta = torch.zeros_like(v), torch.zeros(len(keep), dtype=keep.dtype, device=keep.device)
    alphas: list[Tensor] = []
    betas: list[Tensor] = []
    found = Singular(beta, beta, 0)
    for step in range(1, steps + 1):
        product = keep * operator.gram(keep * v) - _scaled(before, beta)
        alphas.append((product * v).flatten(1).sum(dim=1))
        following, beta = _unit(product - _scaled(v, alphas[-1]))
        betas.append(beta)
        before, v = v, following
        if step % CHECK_EVERY == 0 or step == steps:
            found = _ritz(torch.stack(alphas, dim=1), torch.stack(betas, dim=1))
            if bool((found.residuals <= tolerance).all()):
                break
    return found


def _ritz(alphas: Tensor, betas: Tensor) -> Singular:
    """The largest eigenvalue of each tridiagonal matrix as a singular value, and its residual."""
    matrix = torch.diag_embed(alphas.double())
    off = betas[:, :-1].double()
    matrix = matrix + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    values, vectors = torch.linalg.eigh(matrix)
    top = values[:, -1].clamp(min=0)
    residual = betas[:, -1].double() * vectors[:, -1, -1].abs()
    relative = torch.where(top > 0, residual / torch.where(top > 0, top, 1.0), 0.0)
    return Singular(top.sqrt(), relative, alphas.shape[1])


def _unit(v: Tensor) -> tuple[Tensor, Tensor]:
    """Each item divided by its norm, and the norm; an item that is 0 stays 0."""
    norm = v.flatten(1).norm(dim=1)
    return _scaled(v, torch.where(norm > 0, 1 / norm, 0.0)), norm


def _scaled(v: Tensor, factor: Tensor) -> Tensor:
    return v * factor.view(-1, *[1] * (v.ndim - 1))
