"""A command in several processes that share the shards of its run directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lipforge.cli import processes
from lipforge.cli.processes import cores, end_with_parent, in_processes
from lipforge.errors import InputError
from lipforge.ranks import HELPER, is_first
from tests.schemas import results_of

ATTACKED = ("--data", "cifar10-sample", "--limit", 12, "--shard-size", 3, "--attack", "pgd:steps=2", "--run", "kept")


class Process:
    """A process that has not ended, or has with a code; it remembers how it was started, and that it was killed."""

    def __init__(self, command, env, code=None, **options):
        self.command, self.env, self.returncode, self.killed = command, env, code, False

    def poll(self):
        return self.returncode

    def kill(self):
        self.killed = True

    def communicate(self):
        assert self.killed


@pytest.fixture
def started(monkeypatch):
    """The processes that would have been started, each with the exit code that the test puts into `codes`."""
    found: list[Process] = []
    codes: list[int | None] = []

    def start(command, env, **options):
        found.append(Process(command, env, codes.pop() if codes else None))
        return found[-1]

    monkeypatch.setattr(processes.subprocess, "Popen", start)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setattr(sys, "argv", ["lipforge", "evaluate", "net"])
    return found, codes


def test_the_others_run_the_same_command_with_their_part_of_the_threads_and_end_with_the_block(started):
    before = torch.get_num_threads()
    with in_processes(2, "kept"):
        (other,), _ = started
        assert other.command == [sys.executable, "-m", "lipforge", "evaluate", "net"]
        assert (other.env["OMP_NUM_THREADS"], other.env[HELPER]) == ("2", "1")
        assert torch.get_num_threads() == 2
        assert not other.killed
    assert other.killed
    assert torch.get_num_threads() == before


def test_they_end_with_a_block_that_fails(started):
    with pytest.raises(KeyboardInterrupt), in_processes(3, "kept"):
        raise KeyboardInterrupt
    assert [other.killed for other in started[0]] == [True, True]


def test_one_that_failed_is_named_and_one_that_finished_is_not(started, capsys):
    started[1][:] = [0, 2]
    with in_processes(3, "kept"):
        pass
    assert "note: 1 of 3 processes failed (exit code 2); the work was done without them" in capsys.readouterr().err


def test_without_processes_to_be_had_the_first_works_alone(monkeypatch, capsys):
    def refused(*command, **options):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(processes.subprocess, "Popen", refused)
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
    assert started[0] == []


def test_one_process_starts_no_other_and_neither_does_a_helper(started, monkeypatch):
    with in_processes(1, None):
        pass
    monkeypatch.setenv(HELPER, "1")
    with in_processes(2, "kept"):
        assert not is_first()
    assert started[0] == []


@pytest.mark.parametrize(("asked", "expected"), [("3", 3), ("", None), ("0", None), ("many", None)])
def test_threads_are_those_that_the_environment_allows_or_one_per_core(asked, expected, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert cores() == (expected or usable)


def test_a_helper_computes_shards_says_nothing_and_writes_no_result(run, model_file, monkeypatch):
    command = ("evaluate", f"{model_file}:build", *ATTACKED, "--json")
    monkeypatch.setenv(HELPER, "1")
    assert (run(*command).code, run(*command).out) == (0, "")
    shards = {path: path.stat().st_mtime_ns for path in Path("kept").rglob("shards/*/0*.json")}
    assert len(shards) == 4
    assert not Path("kept/results").exists()
    assert not Path("kept/environment.json").exists()
    monkeypatch.delenv(HELPER)
    (found,) = results_of(run(*command).out)
    assert found["count"] == 12
    assert {path: path.stat().st_mtime_ns for path in shards} == shards
    assert list(Path("kept/results").iterdir())


def test_the_exit_code_of_a_verdict_is_not_a_helpers(run, model_file, mirrored, monkeypatch):
    sample = ("--data", "cifar10-sample", "--limit", 4, "--run", "kept", "--eps", "1/255")
    command = ("audit", f"{model_file}:build", "--recipe", mirrored, *sample)
    assert run(*command).code != 0
    monkeypatch.setenv(HELPER, "1")
    assert run(*command).code == 0


def test_two_processes_give_the_outcomes_of_one(run_process, model_file):
    command = ("evaluate", f"{model_file}:build", *ATTACKED, "--json")
    alone = run_process(*command[:-2], "alone", "--json")
    both = run_process(*command, "--processes", 2)
    assert (both.code, both.err) == (alone.code, alone.err)
    (one,), (other,) = results_of(alone.out), results_of(both.out)
    assert other["outcome"] == one["outcome"]


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
