"""A second process beside a command: on a CPU, two processes that share the shards of a run are faster than one with
twice the threads, because an attack's batches get too small for many threads."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def helper(work: Callable[..., object], *args: Any) -> Iterator[None]:
    """During the block a second process runs `work(*args)`, and each of the two has half of the threads. Both should
    work on one run directory. Nothing depends on the second: it prints nothing, may fail, and ends with the block. With
    a single thread there is none."""
    import torch

    threads = torch.get_num_threads()
    if threads < 2:
        yield
        return
    process = multiprocessing.get_context("spawn").Process(target=_help, args=(threads // 2, work, *args), daemon=True)
    process.start()
    torch.set_num_threads(threads - threads // 2)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        process.terminate()
        process.join()


def _help(threads: int, work: Callable[..., object], *args: Any) -> None:
    import torch

    threading.Thread(target=_end_with_parent, daemon=True).start()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(nowhere, output)
    torch.set_num_threads(threads)
    work(*args)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
