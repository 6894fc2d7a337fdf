"""Largest singular values of a layer under masks, bounds on them, and the slope of a whole network.

A conv or linear layer is the linear map without its bias, at the input size it really has. Singular values come from
the Lanczos method, which takes tens of products W^T W v where power iteration needs hundreds. Every value is a lower
bound up to rounding, and comes with the residual |W^T W v - s^2 v|, relative to s^2: some eigenvalue lies within it.
Only the largest value is wanted, so lost orthogonality does no harm (Paige 1980).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from lipforge import rng
from lipforge.errors import InputError
from lipforge.outputs import logits_in
from lipforge.types import Classifier

LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""The layers that `operator_of` takes."""
CHECK_EVERY = 5
MOST_CLASSES = 100


@dataclass(frozen=True)
class Operator:
    """A linear map v -> W v on batches of vectors; a vector has `item_ndim` dimensions, for a linear layer 1."""

    apply: Callable[[Tensor], Tensor]
    item_ndim: int

    def gram(self, v: Tensor) -> Tensor:
        """W^T W v. The adjoint is taken by autograd, so it is right for any stride, padding, group and dilation."""
        with torch.enable_grad():
            v = v.detach().requires_grad_()
            out = self.apply(v)
            (adjoint,) = torch.autograd.grad(out, v, out.detach())
        return adjoint

    def items(self, v: Tensor) -> Tensor:
        """Any tensor of vectors (..., *item) as (M, *item)."""
        return v.reshape(-1, *v.shape[v.ndim - self.item_ndim :])


def operator_of(layer: nn.Module, *, absolute: bool = False) -> Operator:
    """The conv or linear layer without its bias; `absolute` takes |W| for W."""
    if not isinstance(layer, LINEAR):
        raise InputError(f"layer must be a conv or a linear layer, got {type(layer).__name__}")
    weight = layer.weight.detach().abs() if absolute else layer.weight.detach()
    if isinstance(layer, nn.Linear):
        return Operator(lambda v: nn.functional.linear(v, weight), item_ndim=1)
    conv = cast(nn.Conv2d, layer)
    # torch's own method: it knows the padding modes (zeros, circular, reflect, replicate) and padding="same".
    return Operator(lambda v: conv._conv_forward(v, weight, None), item_ndim=weight.ndim - 1)


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
    """The largest singular value of W diag(k) for all k in `keep` (M, *item), to `tolerance` or in `steps` products."""
    start = rng.normal(seed, torch.zeros(1, dtype=torch.int64), stream="lanczos", shape=keep.shape[1:])
    # The mask of a start keeps it in the space where W diag(keep) can be large; elsewhere the map is 0.
    v = _unit(start.to(keep) * keep)[0]
    before, beta = torch.zeros_like(v), torch.zeros(len(keep), dtype=keep.dtype, device=keep.device)
    alphas, betas = [], []
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


@torch.no_grad()
def gershgorin(absolute: Operator, keep: Tensor) -> Tensor:
    """Upper bounds (M,) on the largest singular value of W diag(keep), one for each item of `keep` (M, *item) >= 0.

    `absolute` is the operator of |W|. By Gershgorin every eigenvalue of A = diag(d) W^T W diag(d), with the mask d, is
    at most the largest row sum of |A|, and those are at most d * |W|^T |W| d: two passes through the layer.
    """
    sums: Tensor = keep * absolute.gram(keep)
    return sums.flatten(1).amax(dim=1).sqrt()


def jacobian_norms(classifier: Classifier, images: Tensor) -> Tensor | None:
    """The largest singular value (N,) of d logits / d image, exactly, one pass per class; None beyond 100 classes."""
    x = images.detach().requires_grad_()
    with torch.enable_grad():
        logits = logits_in(classifier(x))
        classes = logits.shape[1]
        if classes > MOST_CLASSES:
            return None
        rows = [torch.autograd.grad(logits[:, k].sum(), x, retain_graph=k + 1 < classes)[0] for k in range(classes)]
    jacobian = torch.stack(rows, dim=1).flatten(2).double()
    eigenvalues: Tensor = torch.linalg.eigvalsh(jacobian @ jacobian.mT)
    return eigenvalues[:, -1].clamp(min=0).sqrt()


def _ritz(alphas: Tensor, betas: Tensor) -> Singular:
    """The largest eigenvalue of each tridiagonal matrix as a singular value, and its residual."""
    off = betas[:, :-1].double()
    matrix = torch.diag_embed(alphas.double()) + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    values, vectors = torch.linalg.eigh(matrix)
    top = values[:, -1].clamp(min=0)
    residual = betas[:, -1].double() * vectors[:, -1, -1].abs()
    relative = torch.where(top > 0, residual / torch.where(top > 0, top, 1.0), 0.0)
    return Singular(top.sqrt(), relative, alphas.shape[1])


def _unit(v: Tensor) -> tuple[Tensor, Tensor]:
    norm = v.flatten(1).norm(dim=1)
    return _scaled(v, torch.where(norm > 0, 1 / norm, 0.0)), norm


def _scaled(v: Tensor, factor: Tensor) -> Tensor:
    return v * factor.view(-1, *[1] * (v.ndim - 1))
