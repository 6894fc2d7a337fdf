"""The second process of a command."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lipforge.cli.helper import helper


def leave_a_note(path: Path) -> None:
    print("nobody reads this")
    path.with_suffix(".part").write_text(f"{os.getpid()} {torch.get_num_threads()}")
    path.with_suffix(".part").rename(path)
    time.sleep(600)


def fail(path: Path) -> None:
    path.with_suffix(".part").write_text(f"{os.getpid()} {torch.get_num_threads()}")
    path.with_suffix(".part").rename(path)
    raise RuntimeError("nobody reads this either")


def wait_for(event: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not event():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def note(path: Path) -> tuple[int, int]:
    wait_for(path.exists)
    process, threads = path.read_text().split()
    return int(process), int(threads)


def close_outputs() -> None:
    os.close(1)
    os.close(2)


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{process}/stat")  # on Linux a process that nobody has waited for is still there
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_a_second_process_gets_half_of_the_threads_says_nothing_and_ends_with_the_block(tmp_path, threads, capfd):
    threads(3)
    with helper(leave_a_note, tmp_path / "note"):
        process, given = note(tmp_path / "note")
        assert process != os.getpid()
        assert given == torch.get_num_threads() == 1  # the same on both sides, so that they round alike
    assert torch.get_num_threads() == 3
    assert not is_running(process)
    assert capfd.readouterr() == ("", "")


def test_with_one_thread_there_is_no_second_process(tmp_path, threads):
    threads(1)
    with helper(leave_a_note, tmp_path / "note"):
        assert multiprocessing.active_children() == []
        assert torch.get_num_threads() == 1


def test_a_second_process_that_fails_is_missed_by_nobody(tmp_path, threads, capfd):
    threads(2)
    with helper(fail, tmp_path / "note"):
        process, _ = note(tmp_path / "note")
        wait_for(lambda: not is_running(process))
    assert torch.get_num_threads() == 2
    assert capfd.readouterr() == ("", "")


def test_without_processes_to_be_had_the_first_works_alone(tmp_path, threads, monkeypatch):
    def no_process(self):
        raise OSError("no more processes")

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", no_process)
    threads(2)
    with helper(leave_a_note, tmp_path / "note"):
        assert torch.get_num_threads() == 2


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="a kill that nobody can catch")
@pytest.mark.parametrize("closed", [{}, {"preexec_fn": close_outputs}], ids=["open", "closed"])
def test_a_second_process_does_not_outlive_one_that_was_killed_whether_outputs_are_open_or_closed(tmp_path, closed):
    path = tmp_path / "note"
    code = (
        "import pathlib, time, torch\n"
        "from lipforge.cli.helper import helper\n"
        "from tests.cli.test_helper import leave_a_note\n"
        "if __name__ == '__main__':\n"
        "    torch.set_num_threads(2)\n"
        f"    with helper(leave_a_note, pathlib.Path({str(path)!r})):\n"
        "        time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2], **closed) as first:
        try:
            process, _ = note(path)
        finally:
            first.kill()
    wait_for(lambda: not is_running(process))
