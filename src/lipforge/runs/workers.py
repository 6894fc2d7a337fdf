"""Shards handed out: to one process, to several on one run directory, and to the ranks of torchrun.

Every rank draws the next shard from a counter in torchrun's c10d store, so a slow shard holds up nobody. On disk a
shard is computed by whoever holds its lock, which the system frees when its holder dies; what a dead process left is
found missing at the end and computed by the others. Neither changes a result, which depends on the shard alone.
"""

import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch.distributed as dist

from lipforge.errors import RunError
from lipforge.logs import logger
from lipforge.progress import progress
from lipforge.ranks import Store, by_torchrun, from_first, group_store, joined
from lipforge.records import to_builtins
from lipforge.runs.tasks import Compute, Task

PATIENCE = (0.02, 1.0)  # seconds between two looks at shards that others are computing: at first, and at most


Enough = Callable[[list[dict[str, Any]]], bool]
"""Whether the first shards, in order, are all that is needed; it must depend on them alone."""


class Status(Protocol):
    """What the progress bar says beside the count, as `str` gives it; it is shown every finished shard once."""

    def see(self, shard: Mapping[str, Any]) -> None: ...


def work(
    task: Task,
    compute: Compute,
    label: str,
    *,
    status: Status | None = None,
    show_progress: bool | None = None,
    enough: Enough | None = None,
    look_every: int = 1,
) -> list[dict[str, Any]]:
    """The results of all shards in order, on every rank; only what no one has computed yet is computed. The ranks of
    torchrun share the shards; join them first with `lipforge.ranks.process_group`.

    With `enough` the work may end before: at the first shard that completes another `look_every` images and with which
    it is true. Which one that is depends on the shards alone, not on who computed them or what lies beyond."""
    with _store() as store:
        shelf = _Memory(store) if task.folder is None else task
        done: dict[int, dict[str, Any]] = {}
        goal = _Goal(task, done, enough, look_every)

        def look() -> int:
            """How many images were finished since the last look, here or elsewhere."""
            before = len(done)
            for index, shard in shelf.news(done):
                done[index] = shard
                if status is not None:
                    status.see(shard)
            return sum(len(task.images(index)) for index in list(done)[before:])

        if before := look():
            logger.info("%s: resuming, %d of %d images are finished", task.name, before, task.count)
        with progress(label, task.count, done=before, show=show_progress, status=status or "") as step:
            for index in _drawn(task.shards, store):
                if not goal.missing():
                    break
                if index not in done and _compute(shelf, task, index, compute):
                    step(look())
            pause, longest = PATIENCE
            while missing := goal.missing():
                if not any(_compute(shelf, task, index, compute) for index in missing):
                    time.sleep(pause)
                    pause = min(2 * pause, longest)
                seen = look()
                step(seen, "" if seen else f"waiting for shards of other processes: {len(missing)}")
        return [done[index] for index in range(goal.end)]


class _Goal:
    """Which shards are needed: all, or those up to the first look that says they are enough."""

    def __init__(self, task: Task, done: Mapping[int, dict[str, Any]], enough: Enough | None, every: int) -> None:
        self.done, self.enough = done, enough
        self.looks = [task.shards] if enough is None else task.looks(every)
        self.end = self.looks.pop(0)

    def missing(self) -> list[int]:
        """The shards up to the next look that are not there yet; none once the goal is reached, which is `end`."""
        while not (absent := [index for index in range(self.end) if index not in self.done]) and self.looks:
            assert self.enough is not None
            if self.enough([self.done[index] for index in range(self.end)]):
                self.looks.clear()
            else:
                self.end = self.looks.pop(0)
        return absent


def _compute(shelf: "_Memory | Task", task: Task, index: int, compute: Compute) -> bool:
    """Compute a shard unless someone else has done so or is at it; false if someone else is at it."""
    with shelf.claim(index) as mine:
        if mine and shelf.read(index) is None:
            shelf.write(index, to_builtins(dict(compute(task.images(index)))))
        return mine


class _Memory:
    """Shards in this process's memory, used like a task on disk; other ranks see them through the store."""

    def __init__(self, store: Store | None) -> None:
        self.store, self.own = store, dict[int, dict[str, Any]]()
        self.finished, self.unread = 0, set[int]()  # shards in the store, numbered as they were finished

    @contextmanager
    def claim(self, index: int) -> Iterator[bool]:
        yield self.store is None or self.store.add(f"claim/{index}", 1) == 1

    def read(self, index: int) -> dict[str, Any] | None:
        return self.own.get(index)

    def write(self, index: int, result: Mapping[str, Any]) -> None:
        # Through JSON, so that a run in memory gives exactly what a run on disk gives.
        text = json.dumps(result, allow_nan=False)
        self.own[index] = json.loads(text)
        if self.store is not None:
            self.store.set(f"shard/{self.store.add('finished', 1)}", json.dumps([index, text]))

    def news(self, known: Mapping[int, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
        for index, shard in self.own.items():
            if index not in known:
                yield index, shard
        if self.store is None:
            return
        # By the order in which they were finished: asking for every shard that is missing would keep the store busy.
        before, self.finished = self.finished, self.store.add("finished", 0)
        self.unread.update(range(before + 1, self.finished + 1))
        for number in sorted(self.unread):
            if self.store.check([f"shard/{number}"]):  # whoever has counted it sets it next
                self.unread.remove(number)
                index, text = json.loads(self.store.get(f"shard/{number}"))
                if index not in known:
                    yield index, json.loads(text)


def _drawn(count: int, store: Store | None) -> Iterable[int]:
    """Numbers below `count`: all of them, or under torchrun those that this rank draws."""
    if store is None:
        yield from range(count)
        return
    while (index := store.add("next", 1) - 1) < count:
        yield index


@contextmanager
def _store() -> Iterator[Store | None]:
    """A part of torchrun's store for one piece of work; None in a single process. All ranks leave together."""
    if not joined():
        if by_torchrun():
            raise RunError(
                "this process is one of several of torchrun, but has not joined them: put the work inside "
                "`with lipforge.ranks.process_group(device):`"
            )
        yield None
        return
    if "MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ:
        raise RunError("MASTER_ADDR and MASTER_PORT must say where the ranks meet; start them with torchrun")
    # A fresh name: the store outlives this piece of work and even the ranks, which torchrun may restart.
    name = from_first(f"lipforge-{secrets.token_hex(8)}")
    yield dist.PrefixStore(name, group_store())  # type: ignore[arg-type]  # no stubs
    # The store may live in the first rank, which must not go before the others have read everything.
    dist.barrier()
