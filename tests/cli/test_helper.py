"""The second process of a command."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lipforge.cli.helper import helper


def leave_a_note(path: Path) -> None:
    print("nobody reads this")
    path.with_suffix(".part").write_text(f"{os.getpid()} {torch.get_num_threads()}")
    path.with_suffix(".part").rename(path)
    time.sleep(600)


def fail() -> None:
    raise RuntimeError("nobody reads this either")


def note(path: Path) -> tuple[int, int]:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process, threads = path.read_text().split()
    return int(process), int(threads)


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
        assert (given, torch.get_num_threads()) == (1, 2)
    assert torch.get_num_threads() == 3
    assert not is_running(process)
    assert capfd.readouterr() == ("", "")


def test_with_one_thread_there_is_no_second_process(tmp_path, threads):
    threads(1)
    with helper(leave_a_note, tmp_path / "note"):
        time.sleep(0.1)
        assert torch.get_num_threads() == 1
    assert not (tmp_path / "note").exists()


def test_a_second_process_that_fails_is_missed_by_nobody(threads, capfd):
    threads(2)
    with helper(fail):
        time.sleep(0.1)
    assert torch.get_num_threads() == 2
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="a kill that nobody can catch")
def test_a_second_process_does_not_outlive_one_that_was_killed(tmp_path):
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
    first = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    process, _ = note(path)
    first.kill()
    first.wait()
    deadline = time.monotonic() + 60
    while is_running(process):
        assert time.monotonic() < deadline
        time.sleep(0.05)
