"""What the processes of one training share: each batch, the gradients, and the first one's decisions."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lipforge.errors import InputError
from lipforge.ranks import Rank, joined


def check_shares(batch_size: int, rank: Rank) -> None:
    """Raise if the processes cannot share a batch of that size equally."""
    if batch_size % rank.count:
        raise InputError(f"batch_size must be a multiple of the {rank.count} processes, got {batch_size}")


def share(indices: Tensor, rank: Rank) -> Tensor:
    """This process's part of a batch: every `count`-th image, so that all parts are equally long."""
    return indices[rank.index :: rank.count]


@torch.no_grad()
def average_(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its mean over all processes, in one exchange; nothing to do in a single process."""
    if not joined() or not tensors:
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for tensor, mean in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(mean.view_as(tensor))


def agree(values: Sequence[float], device: torch.device) -> list[float]:
    """The first process's numbers, in every process."""
    if not joined():
        return list(values)
    shared = torch.tensor(values, dtype=torch.float64, device=device)
    dist.broadcast(shared, src=0)
    return [float(value) for value in shared]
