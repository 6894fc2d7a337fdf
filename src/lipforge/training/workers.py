"""One process, or several under torchrun that hold equal weights and share each batch."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from lipforge.errors import InputError


@dataclass(frozen=True)
class Worker:
    """Which of how many processes this is; the first one writes files and shows progress."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def checked(self, batch_size: int) -> "Worker":
        """This worker, unless a batch of that size cannot be shared equally."""
        if batch_size % self.count:
            raise InputError(f"batch_size must be a multiple of the {self.count} processes, got {batch_size}")
        return self

    def share(self, indices: Tensor) -> Tensor:
        """This process's part of a batch: every `count`-th image, so that all parts are equally long."""
        return indices[self.rank :: self.count]


@contextmanager
def workers(batch_size: int, device: torch.device) -> Iterator[Worker]:
    """The processes that torchrun started, joined by nccl on CUDA and by gloo elsewhere; without torchrun just one."""
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Worker()
        return
    joined = not dist.is_initialized()
    if joined:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Worker(dist.get_rank(), dist.get_world_size()).checked(batch_size)
    finally:
        if joined:
            dist.destroy_process_group()


@torch.no_grad()
def average_(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its mean over all processes, in one exchange; nothing to do in a single process."""
    if not (dist.is_available() and dist.is_initialized()) or not tensors:
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for tensor, mean in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(mean.view_as(tensor))


def agree(values: Sequence[float], device: torch.device) -> list[float]:
    """The first process's numbers, in every process."""
    if not (dist.is_available() and dist.is_initialized()):
        return list(values)
    shared = torch.tensor(values, dtype=torch.float64, device=device)
    dist.broadcast(shared, src=0)
    return [float(value) for value in shared]
