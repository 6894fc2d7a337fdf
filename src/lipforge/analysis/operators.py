"""Conv and linear layers as the linear maps they are, bias left out, at the input size they really have."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from lipforge.errors import InputError

CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Operator:
    """A linear map v -> W v on a batch of vectors, one operator for the whole batch.

    `item_ndim` says how many of the last dimensions make one vector: 1 for a linear layer, which acts on every token
    alone, and channels plus space for a conv.
    """

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


def is_linear(layer: nn.Module) -> bool:
    """Whether `operator_of` takes this layer."""
    return isinstance(layer, (nn.Linear, *CONVS))


def operator_of(layer: nn.Module, *, absolute: bool = False) -> Operator:
    """The conv or linear layer without its bias; `absolute` takes |W| for W."""
    if not isinstance(layer, (nn.Linear, *CONVS)):
        raise InputError(f"layer must be a conv or a linear layer, got {type(layer).__name__}")
    weight = layer.weight.detach()
    weight = weight.abs() if absolute else weight
    if isinstance(layer, nn.Linear):
        return Operator(lambda v: nn.functional.linear(v, weight), item_ndim=1)
    conv = cast(nn.Conv2d, layer)
    # torch's own method: it knows the padding modes (zeros, circular, reflect, replicate) and padding="same".
    return Operator(lambda v: conv._conv_forward(v, weight, None), item_ndim=1 + conv.weight.ndim - 2)
