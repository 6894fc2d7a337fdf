"""`--processes`: the same command in several processes of this machine, which share the shards of its run directory.

On a CPU this is faster than one process with as many threads: the batches of an attack are too small for many threads.
"""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from typer import Option

from lipforge.cli.output import note
from lipforge.errors import InputError
from lipforge.ranks import HELPER, by_torchrun, is_helper

THREADS = "OMP_NUM_THREADS"

Processes = Annotated[
    int, Option(help="Share the work among this many processes; needs --run. On a CPU, faster than as many threads.")
]


def cores() -> int:
    """How many threads torch would use here: what OMP_NUM_THREADS says, or the cores of this process."""
    asked = os.environ.get(THREADS, "")
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(asked) if asked.isdecimal() and int(asked) else usable


@contextmanager
def in_processes(count: int, run: str | None) -> Iterator[None]:
    """During the block, `count` processes run this command on the directory `run`, each with its part of the threads.

    The others compute shards and nothing else: they print nothing, write no result, and end with the block, even if
    this process is killed. No result depends on them. If one fails, a note says why, and its shards are computed here.
    """
    if count < 1:
        raise InputError(f"processes must be at least 1, got {count}")
    if count == 1 or is_helper():
        yield
        return
    if run is None:
        raise InputError("--processes needs --run, a directory through which the processes share their work")
    if by_torchrun():
        raise InputError("--processes is for a command without torchrun; torchrun --nproc-per-node does the same")
    threads = max(1, cores() // count)
    others = [process for process in (_start(threads, count) for _ in range(count - 1)) if process is not None]
    try:
        with _threads(threads):
            yield
    finally:
        for process in others:
            process.end()


def refuse_processes(count: int, what: str) -> None:
    """Raise if `what`, which has no shards, was asked for in several processes."""
    if count > 1:
        raise InputError(f"{what} has no shards that processes could share; leave --processes out")


def end_with_parent() -> None:
    """End this process, if it is a helper, as soon as the one that started it is gone: its standard input closes."""
    if is_helper():
        threading.Thread(target=_wait_for_parent, daemon=True).start()


class _Helper:
    """A process that runs this command; a note says why, should it fail before it is ended."""

    def __init__(self, threads: int, count: int) -> None:
        # The script `lipforge` does not look for modules in the working directory, unlike `python -m`.
        safe = [] if {"", os.getcwd()} & set(sys.path) else ["-P"]
        self.said = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `end`
        self.process = subprocess.Popen(
            [sys.executable, *safe, "-m", "lipforge", *sys.argv[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self.said,
            env={**os.environ, HELPER: "1", THREADS: str(threads)},
        )
        self.ended = False
        self.watch = threading.Thread(target=self._watch, args=(count,), daemon=True)
        self.watch.start()

    def _watch(self, count: int) -> None:
        code = self.process.wait()
        if code and not self.ended:
            self.said.seek(0)
            said = self.said.read().decode(errors="replace").strip().splitlines()
            why = f": {said[-1]}" if said else ""
            note(f"one of {count} processes failed (exit code {code}){why}; the work goes on without it")

    def end(self) -> None:
        """End the process. It has nothing to save: shards are written whole."""
        self.ended = True
        self.process.kill()
        self.watch.join()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.said.close()


def _start(threads: int, count: int) -> _Helper | None:
    try:
        return _Helper(threads, count)
    except OSError as error:  # no memory, too many processes
        note(f"a process could not be started ({error.strerror}); the work is done without it")
        return None


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """During the block torch uses that many threads: as many as in the other processes, so that all round alike."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _wait_for_parent() -> None:
    # Not through sys.stdin: a thread that holds its lock when the interpreter ends aborts the process.
    os.read(0, 1)
    os._exit(1)
