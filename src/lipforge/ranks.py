"""One process, or one of several that torchrun started."""

import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from lipforge.errors import RunError

if TYPE_CHECKING:  # imported in the functions: the command line asks who is first before it needs torch
    import torch

T = TypeVar("T")

HELPER = "LIPFORGE_HELPER"
"""The environment variable of a process that only computes shards for the one that started it."""

_alone = ContextVar("alone", default=False)
_group_store: "ContextVar[Store | None]" = ContextVar("group_store", default=None)


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


def is_helper() -> bool:
    """Whether this process only computes shards for another one, which `--processes` started with it."""
    return HELPER in os.environ


def is_first() -> bool:
    """Whether this process is the one that writes common files and shows progress, joined or not."""
    return not is_helper() and (os.environ.get("RANK", "0") == "0" or not by_torchrun())


def joined() -> bool:
    """Whether this process has joined a group of several, and is not `alone`."""
    import torch.distributed as dist

    return not _alone.get() and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


@contextmanager
def alone() -> Iterator[None]:
    """Inside the block this rank works as if it were the only process: for work that one rank does for all."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def own_rank() -> Rank:
    """This process among those that have joined; the only one where it has not."""
    if not joined():
        return Rank()
    import torch.distributed as dist

    return Rank(dist.get_rank(), dist.get_world_size())


def from_first(value: T) -> T:
    """The first rank's value, on every rank that has joined; all must call it."""
    if not joined():
        return value
    import torch.distributed as dist

    shared = [value]
    dist.broadcast_object_list(shared)
    return shared[0]


def own_device(device: "torch.device") -> "torch.device":
    """The device of this process: under torchrun "cuda" means another one for each process of a machine."""
    if not by_torchrun() or device.type != "cuda" or device.index is not None:
        return device
    import torch

    return torch.device("cuda", int(os.environ["LOCAL_RANK"]))


@contextmanager
def process_group(device: "torch.device") -> Iterator[Rank]:
    """Join the processes that torchrun started, by nccl on CUDA and by gloo elsewhere; without torchrun just one. A
    group that exists already is used and left as it is."""
    if not by_torchrun():
        yield Rank(int(is_helper()))
        return
    import torch
    import torch.distributed as dist

    join, token = not dist.is_initialized(), None
    if join:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        index, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = open_store()
        fresh = dist.PrefixStore(meet(store, index, count), store)  # type: ignore[arg-type]  # no stubs
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=fresh, rank=index, world_size=count)
        token = _group_store.set(store)
    try:
        yield Rank(dist.get_rank(), dist.get_world_size())
    finally:
        if token is not None:
            _group_store.reset(token)
            dist.destroy_process_group()


class Store(Protocol):
    """What is used of torch's key-value stores."""

    def add(self, key: str, amount: int) -> int: ...
    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...


def open_store(*, join: bool = False) -> Store:
    """The store where all ranks meet: torchrun's own, or one that the first rank opens; `join` never opens one."""
    import torch.distributed as dist

    hosted = join or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store: Store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=not hosted and os.environ["RANK"] == "0",
        wait_for_workers=False,
        multi_tenant=True,
    )
    return store


def group_store() -> Store:
    """The store of the ranks that have joined, by the connection of `process_group`, or by a new one where another
    program made the group. Connecting looks up names, and takes seconds if many ranks ask a slow server at once."""
    return _group_store.get() or open_store(join=True)


def meet(store: Store, index: int, count: int, *, patience: float = 600.0) -> str:
    """A name that the ranks agree on and that no ranks before them had.

    torchrun's store outlives ranks that it restarts, and nothing counts the restarts alike on all machines; ranks that
    find the addresses of dead ones wait in vain. So each rank asks with a number of its own and the first answers
    whoever asked, dead or not, until all that live have said that they heard.
    """
    own = secrets.token_hex(8)
    deadline = time.monotonic() + patience
    late = RunError(f"not all of the {count} processes that torchrun started have arrived after {patience:g} s")
    if index > 0:
        store.set(f"lipforge-asks/{store.add('lipforge-asks', 1)}", own)
        while not store.check([f"lipforge-answer/{own}"]):
            _nap(deadline, late)
        name = store.get(f"lipforge-answer/{own}").decode()
        store.add(f"lipforge-heard/{name}", 1)
        return name
    asked, unanswered = 0, set[int]()
    while store.add(f"lipforge-heard/{own}", 0) < count - 1:
        before, asked = asked, store.add("lipforge-asks", 0)
        unanswered.update(range(before + 1, asked + 1))
        for number in sorted(unanswered):
            # A rank that has counted itself sets its number next; one that died in between never does.
            if store.check([f"lipforge-asks/{number}"]):
                store.set(f"lipforge-answer/{store.get(f'lipforge-asks/{number}').decode()}", own)
                unanswered.remove(number)
        _nap(deadline, late)
    return own


def _nap(deadline: float, late: RunError) -> None:
    if time.monotonic() > deadline:
        raise late
    time.sleep(0.01)


def leave(code: int) -> None:
    """End this process at once, without tearing the interpreter down: a thread of gloo that lets go of a tensor
    meanwhile aborts the process, and a rank that did all its work would count as failed."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
