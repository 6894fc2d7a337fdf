"""One process, or one of several that torchrun started."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Rank:
    """Which of how many processes this is; the first one writes files and shows progress."""

    index: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.index == 0

    def share(self, count: int) -> list[int]:
        """The positions of this rank's images out of `count`: every image belongs to exactly one rank."""
        return list(range(self.index, count, self.count))


def by_torchrun() -> bool:
    """Whether this process is one of several that torchrun started."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_first() -> bool:
    """Whether this process is the one that writes common files and shows progress, joined or not."""
    return os.environ.get("RANK", "0") == "0" or not by_torchrun()


def joined() -> bool:
    """Whether this process has joined a group of several."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def own_device(device: torch.device) -> torch.device:
    """The device of this process: under torchrun "cuda" means another one for each process of a machine."""
    if not by_torchrun() or device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", int(os.environ["LOCAL_RANK"]))


@contextmanager
def process_group(device: torch.device) -> Iterator[Rank]:
    """Join the processes that torchrun started, by nccl on CUDA and by gloo elsewhere; without torchrun just one.

    A group that exists already is used and left as it is.
    """
    if not by_torchrun():
        yield Rank()
        return
    join = not dist.is_initialized()
    if join:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Rank(dist.get_rank(), dist.get_world_size())
    finally:
        if join:
            dist.destroy_process_group()


def leave(code: int) -> None:
    """End this process at once, without tearing the interpreter down.

    A thread of gloo may let go of a tensor while Python is being torn down, which aborts the process: a rank that did
    all its work would then count as failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
