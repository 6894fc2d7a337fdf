"""A task: images in fixed ranges, one shard each, on disk or in memory."""

import errno
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from lipforge.errors import InputError, WriteError
from lipforge.logs import warn
from lipforge.records import ABANDONED, to_builtins, write_json

Compute = Callable[[range], Mapping[str, Any]]  # the result of one shard, from the positions of its images alone

Complete = Callable[["Task", range, Mapping[str, Any]], bool]

NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}  # a file system without locks


@contextmanager
def held(path: Path, patience: float) -> Iterator[Literal["held", "busy", "no locks"]]:
    """The file's lock inside the block, if it is free within `patience` seconds; its holder's death frees it."""
    # Not a lock by the file's existence, which would outlive a holder that dies on another machine.
    lock = FileLock(path, timeout=patience, fallback_to_soft=False)
    found: Literal["held", "busy", "no locks"] = "held"
    try:
        lock.acquire()
    except Timeout:
        found = "busy"
    except NotImplementedError:
        found = "no locks"
    except OSError as error:
        if error.errno not in NO_LOCKS:
            reason = f"{path} cannot be locked ({error.strerror})"
            raise WriteError(f"{reason}; a run needs a folder that takes files") from None
        found = "no locks"
    try:
        yield found
    finally:
        lock.release()


class DamagedShardError(Exception):
    """A shard file that is not what was written: cut short, edited, or of another range or task."""


@dataclass(frozen=True)
class Task:
    """`count` images in shards of `size`, of which the last may be shorter; without a folder it lives in memory."""

    name: str
    count: int
    size: int
    digest: str
    folder: Path | None = None
    complete: Complete | None = None

    @property
    def shards(self) -> int:
        return -(-self.count // self.size)

    def images(self, index: int) -> range:
        return range(index * self.size, min((index + 1) * self.size, self.count))

    def looks(self, every: int) -> list[int]:
        """The numbers of shards, from the first on, that complete another `every` images; the last has all."""
        return [-(-images // self.size) for images in range(every, self.count, every)] + [self.shards]

    def path(self, index: int, suffix: str = ".json") -> Path:
        assert self.folder is not None
        return self.folder / f"{index:04d}{suffix}"

    def news(self, known: Mapping[int, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
        assert self.folder is not None
        found = {int(path.stem) for path in self.folder.glob("*.json") if path.stem.isdecimal()}
        for index in sorted(found - known.keys()):
            if index < self.shards and (shard := self.read(index)) is not None:
                yield index, shard

    def read(self, index: int) -> dict[str, Any] | None:
        """A finished shard's result; None if there is none, it is damaged, or something that belongs to it is gone."""
        try:
            return self._load(index)
        except DamagedShardError:
            return None

    def write(self, index: int, result: Mapping[str, Any]) -> None:
        """Write a shard whole, with what it takes to recognise damage."""
        images = self.images(index)
        content = {"first": images.start, "count": len(images), "task": self.digest, "sha256": digest_of(result)}
        write_json(self.path(index), {**content, "result": result})

    @contextmanager
    def claim(self, index: int) -> Iterator[bool]:
        """Whether this process may compute the shard: nobody else is at it. A claim ends with its process. On a file
        system without locks every claim succeeds: shards may be computed twice, with the same result."""
        path = self.path(index, ".lock")
        with held(path, patience=0) as lock:
            if lock == "busy":
                yield False
                return
            self._tidy(index, alone=lock == "held")
            yield True
        if self.path(index).exists():
            # Whoever still waits for this lock finds the shard finished, so the file can go.
            with suppress(PermissionError):  # Windows keeps a file that someone has open
                path.unlink(missing_ok=True)

    def _load(self, index: int) -> dict[str, Any] | None:
        images, path = self.images(index), self.path(index)
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise DamagedShardError(f"not valid JSON ({error})") from None
        if not isinstance(content, dict) or not isinstance(content.get("result"), dict):
            raise DamagedShardError("no shard")
        if (content.get("first"), content.get("count")) != (images.start, len(images)):
            raise DamagedShardError(f"it is of other images than {images.start}..{images.stop - 1}")
        if content.get("task") != self.digest:
            raise DamagedShardError("it is of another task")
        result: dict[str, Any] = content["result"]
        if content.get("sha256") != digest_of(result):
            raise DamagedShardError("its content does not match its checksum")
        return result if self.complete is None or self.complete(self, images, result) else None

    def _tidy(self, index: int, *, alone: bool) -> None:
        """Set a damaged file aside and remove what a killed process left half-written: if someone else may be writing
        the same shard just now, without locks, only what is old."""
        path = self.path(index)
        for left in path.parent.glob(f".{index:04d}.*.part"):
            with suppress(FileNotFoundError):
                if alone or time.time() - left.stat().st_mtime > ABANDONED:
                    left.unlink()
        try:
            self._load(index)
        except DamagedShardError as damage:
            aside = path.with_name(f"{path.name}.damaged")
            with suppress(FileNotFoundError):  # someone else, without locks, set it aside just now
                os.replace(path, aside)
            warn(f"{path} is damaged: {damage}; set aside as {aside.name}, computed again")


def check_shape(count: int, size: int) -> None:
    if count < 1 or size < 1:
        raise InputError(f"a task needs at least 1 image in shards of at least 1, got {count} in shards of {size}")


def digest_of(value: Any) -> str:
    """SHA-256 of a value's JSON, keys sorted: the same for equal values in any order."""
    text = json.dumps(to_builtins(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
