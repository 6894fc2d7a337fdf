"""A second process beside a command: on a CPU, two processes that share the shards of a run are faster than one with
twice the threads, because an attack's batches get too small for many threads."""

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lipforge.logs import logger


@contextmanager
def helper(work: Callable[..., object], *args: Any) -> Iterator[None]:
    """During the block a second process runs `work(*args)`, and each of the two has half of the threads. Both should
    work on one run directory. No result depends on the second: what it does prints nothing, may fail, which costs time,
    and ends with the block. With a single thread there is none."""
    import torch

    threads = torch.get_num_threads()
    # A closed stdout or stderr has given its number to another file.
    outputs = [number for number, stream in ((1, sys.__stdout__), (2, sys.__stderr__)) if stream is not None]
    started = (outputs, threads // 2, work, *args)
    process = multiprocessing.get_context("spawn").Process(target=_help, args=started, daemon=True)
    if threads < 2 or not _start(process):
        yield
        return
    torch.set_num_threads(threads // 2)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if process.exitcode:
            logger.info("the second process failed with exit code %d", process.exitcode)
        process.terminate()
        process.join()


def _start(process: multiprocessing.process.BaseProcess) -> bool:
    try:
        process.start()
    except (OSError, AssertionError) as error:  # no memory, too many processes; a daemon may not have children
        logger.info("there is no second process: %s", error)
        return False
    return True


def _help(outputs: Sequence[int], threads: int, work: Callable[..., object], *args: Any) -> None:
    import torch

    threading.Thread(target=_end_with_parent, daemon=True).start()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in outputs:
        os.dup2(nowhere, output)
    torch.set_num_threads(threads)
    work(*args)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
