"""Locks on files, which the system frees when their holder dies."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

if sys.platform != "win32":
    import fcntl

PATIENCE = 10.0
"""Seconds to wait for a lock that is held for moments."""


def take_lock(descriptor: int) -> Literal["held", "busy", "no locks"]:
    """Take the file's lock if it is free; not every file system and system has locks."""
    if sys.platform == "win32":
        return "no locks"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "busy"
    except OSError:
        return "no locks"
    return "held"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Inside the block no other process is inside one of the same path.

    Where there are no locks, or someone keeps the lock for longer than `PATIENCE`, the block is entered all the same.
    """
    deadline = time.monotonic() + PATIENCE
    with open(path, "ab") as file:
        while take_lock(file.fileno()) == "busy" and time.monotonic() < deadline:
            time.sleep(0.01)
        yield
