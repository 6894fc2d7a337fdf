"""A command in several processes that share the shards of its run directory."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from lipforge.cli import processes
from lipforge.cli.processes import cores, end_with_parent, in_processes
from lipforge.errors import InputError
from lipforge.ranks import HELPER, is_first
from lipforge.runs import RunDir
from tests.schemas import results_of

ATTACKED = ("--data", "cifar10-sample", "--limit", 12, "--shard-size", 3, "--attack", "pgd:steps=2", "--run", "kept")


class Helper:
    """A process that would have been started: with how many threads, out of how many, and whether it was ended."""

    def __init__(self, threads, count):
        self.started, self.ended = (threads, count), False

    def end(self):
        self.ended = True


@pytest.fixture
def started(monkeypatch):
    """The processes that would have been started."""
    found: list[Helper] = []

    def start(threads, count):
        found.append(Helper(threads, count))
        return found[-1]

    monkeypatch.setattr(processes, "_Helper", start)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    return found


def test_the_others_get_their_part_of_the_threads_and_end_with_the_block(started):
    before = torch.get_num_threads()
    with in_processes(2, "kept"):
        (other,) = started
        assert other.started == (2, 2)
        assert torch.get_num_threads() == 2
        assert not other.ended
    assert other.ended
    assert torch.get_num_threads() == before


def test_they_end_with_a_block_that_fails(started):
    with pytest.raises(KeyboardInterrupt), in_processes(3, "kept"):
        raise KeyboardInterrupt
    assert [other.ended for other in started] == [True, True]


def wait_for(capfd, text):
    """What stderr has said when it says `text`."""
    said, deadline = "", time.monotonic() + 120
    while text not in said:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        said += capfd.readouterr().err
    return said


def test_one_that_fails_says_why_at_once(monkeypatch, capfd, environment):
    monkeypatch.setattr(sys, "argv", ["lipforge", "evaluate", "resnet2O"])
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    with in_processes(2, "kept"):
        said = wait_for(capfd, "the work goes on without it")
    assert "note: one of 2 processes failed (exit code 2): error: no model 'resnet2O'" in said


def test_one_that_is_ended_with_the_block_has_not_failed(monkeypatch, capfd, environment):
    monkeypatch.setattr(sys, "argv", ["lipforge", "evaluate", "cifar10-resnet"])
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    with in_processes(2, "kept"):
        pass
    assert "failed" not in capfd.readouterr().err


def test_a_file_in_the_working_directory_is_not_taken_for_lipforge(monkeypatch, capfd, environment):
    Path("lipforge.py").write_text("raise SystemExit(9)")
    monkeypatch.setattr(sys, "argv", ["lipforge", "evaluate", "resnet2O"])
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    with in_processes(2, "kept"):
        said = wait_for(capfd, "the work goes on without it")
    assert "exit code 2" in said


def test_without_processes_to_be_had_the_first_works_alone(monkeypatch, capsys):
    def refused(*command, **options):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(processes, "_Helper", refused)
    with in_processes(2, "kept"):
        pass
    assert "a process could not be started (Resource temporarily unavailable)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("count", "run", "world", "named"),
    [
        (0, "kept", "1", "processes must be at least 1, got 0"),
        (2, None, "1", "--processes needs --run"),
        (2, "kept", "2", "torchrun --nproc-per-node does the same"),
    ],
)
def test_what_cannot_be_shared_is_refused(count, run, world, named, monkeypatch, started):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", world)
    with pytest.raises(InputError, match=named), in_processes(count, run):
        pass
    assert started == []


def test_one_process_starts_no_other_and_neither_does_a_helper(started, monkeypatch):
    with in_processes(1, None):
        pass
    monkeypatch.setenv(HELPER, "1")
    with in_processes(2, "kept"):
        assert not is_first()
    assert started == []


@pytest.mark.parametrize(("asked", "expected"), [("3", 3), ("", None), ("0", None), ("many", None)])
def test_threads_are_those_that_the_environment_allows_or_one_per_core(asked, expected, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert cores() == (expected or usable)


def test_a_helper_computes_shards_says_nothing_and_writes_no_result(run, model_file, monkeypatch):
    command = ("evaluate", f"{model_file}:build", *ATTACKED, "--json")
    (before,) = results_of(run(*command).out)
    for path in [*Path("kept").rglob("shards/*/0*.json"), *Path("kept/results").iterdir()]:
        path.unlink()
    known = Path("kept/environment.json").read_text()
    monkeypatch.setenv(HELPER, "1")
    helped = run(*command)
    assert (helped.code, helped.out) == (0, "")
    shards = {path: path.stat().st_mtime_ns for path in Path("kept").rglob("shards/*/0*.json")}
    assert len(shards) == 4
    assert not list(Path("kept/results").iterdir())
    assert Path("kept/environment.json").read_text() == known
    monkeypatch.delenv(HELPER)
    (after,) = results_of(run(*command).out)
    assert after["outcome"] == before["outcome"]
    assert {path: path.stat().st_mtime_ns for path in shards} == shards


def test_a_helper_waits_for_the_identity_of_the_work_and_never_makes_it(tmp_path, monkeypatch):
    monkeypatch.setenv(HELPER, "1")
    helped = threading.Thread(target=lambda: RunDir(tmp_path).task("base", {"model": "mine"}, 4, 2))
    helped.start()
    helped.join(timeout=0.5)
    assert helped.is_alive()
    assert not (tmp_path / "shards").exists()
    monkeypatch.delenv(HELPER)
    RunDir(tmp_path).task("base", {"model": "mine"}, 4, 2)
    helped.join(timeout=60)
    assert not helped.is_alive()


def test_the_exit_code_of_a_verdict_is_not_a_helpers(run, model_file, mirrored, monkeypatch):
    sample = ("--data", "cifar10-sample", "--limit", 4, "--run", "kept", "--eps", "1/255")
    command = ("audit", f"{model_file}:build", "--recipe", mirrored, *sample)
    assert run(*command).code != 0
    monkeypatch.setenv(HELPER, "1")
    assert run(*command).code == 0


WAITING = """
import os, time
from pathlib import Path
import mine

class Net(mine.Net):
    def forward(self, x):
        if list(Path("kept").glob("shards/*/config.json")):
            (helped := Path("helped")).touch() if "LIPFORGE_HELPER" in os.environ else None
            while not Path("helped").exists():  # so that both have something to do
                time.sleep(0.02)
            with open("passes", "a") as log:
                log.write(f"{os.getpid()}\\n")
            time.sleep(0.2)
        return super().forward(x)

def build():
    return Net()
"""


def test_two_processes_share_the_work_and_give_the_outcomes_of_one(run_process, model_file):
    waiting = model_file.with_name("waiting.py")
    waiting.write_text(WAITING)
    attacked = ("--data", "cifar10-sample", "--limit", 12, "--shard-size", 1, "--attack", "fgsm", "--json")
    alone = run_process("evaluate", f"{model_file}:build", *attacked)
    both = run_process("evaluate", f"{waiting}:build", *attacked, "--run", "kept", "--processes", 2)
    assert (both.code, both.err) == (0, "")
    assert results_of(both.out)[0]["outcome"] == results_of(alone.out)[0]["outcome"]
    assert len(set(Path("passes").read_text().split())) == 2


@pytest.mark.parametrize(
    "command", [("analyse", "--recipe", "r.json"), ("evaluate", "--estimate"), ("certify", "--estimate")]
)
def test_work_without_shards_is_not_shared(run, started, command):
    ended = run(command[0], "cifar10-resnet", *command[1:], "--run", "kept", "--processes", 2)
    assert ended.code == 2
    assert "has no shards that processes could share; leave --processes out" in ended.err


def test_a_helper_does_not_outlive_the_process_that_started_it(environment):
    code = "import time; from lipforge.cli.processes import end_with_parent; end_with_parent(); time.sleep(600)"
    command, its = [sys.executable, "-c", code], {**environment, HELPER: "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=its) as helper:
        assert helper.stdin is not None
        assert helper.poll() is None
        helper.stdin.close()
        assert helper.wait(timeout=300) == 1


def test_a_helper_that_has_finished_ends_without_an_error(environment):
    command, its = [sys.executable, "-m", "lipforge", "--version"], {**environment, HELPER: "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=its) as helper:
        assert helper.wait(timeout=300) == 0


def test_other_processes_do_not_wait_for_their_standard_input(monkeypatch):
    monkeypatch.setattr(processes.threading, "Thread", None)
    end_with_parent()
