"""One process, or one of several that torchrun started."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Rank:
    """Which of how many processes this is."""

    index: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.index == 0

    def share(self, count: int) -> list[int]:
        """The positions of this rank's images out of `count`: every image belongs to exactly one rank."""
        return list(range(self.index, count, self.count))


def own_device(device: torch.device) -> torch.device:
    """The device of this process: under torchrun "cuda" means another one for each process of a machine."""
    if _alone() or device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", int(os.environ["LOCAL_RANK"]))


@contextmanager
def process_group(device: torch.device) -> Iterator[Rank]:
    """Join the process group if torchrun started us; alone otherwise."""
    if _alone():
        yield Rank()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Rank(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def _alone() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) == 1
