"""Shards on disk: damage is recognised and set aside, claims end with their process."""

import errno
import json
import os
import time
import warnings

import pytest

from lipforge.runs import RunDir, Task

RESULT = {"outcome": ["robust", "pgd", "robust"], "seconds": 0.1 + 0.2}


def cut(text: str) -> str:
    return text[: len(text) // 2]


def edited(**changes: object):
    return lambda text: json.dumps({**json.loads(text), **changes})


DAMAGE = {
    "not valid JSON": cut,
    "not valid JSON ": lambda text: "",
    "not valid JSON  ": lambda text: text + "}",
    "no shard": lambda text: "[]",
    "no shard ": edited(result=None),
    "of other images than 3..5": edited(first=0),
    "of other images": edited(count=2),
    "of another task": edited(task="0" * 64),
    "checksum": edited(result={**RESULT, "outcome": ["robust", "pgd"]}),
    "checksum ": edited(result={**RESULT, "seconds": 0.3}),
}


@pytest.fixture
def task(tmp_path) -> Task:
    return RunDir.open(tmp_path).task("base", {}, 8, 3)


def test_a_shard_comes_back_as_it_was_written(task):
    task.write(1, RESULT)
    assert task.read(1) == RESULT
    assert task.read(0) is None
    assert dict(task.news({})).keys() == {1}


@pytest.mark.parametrize("reason", DAMAGE)
def test_a_damaged_shard_counts_as_missing_and_is_set_aside(task, reason):
    task.write(1, RESULT)
    whole = task.path(1).read_text()
    task.path(1).write_text(DAMAGE[reason](whole))
    assert task.read(1) is None
    assert task.path(1).exists(), "only the holder of the claim may move it"
    with pytest.warns(UserWarning, match=reason.strip()):
        task.claim(1).__enter__()
    assert not task.path(1).exists()
    assert task.path(1).with_name("0001.json.damaged").read_text() == DAMAGE[reason](whole)


def test_a_shard_of_another_task_is_not_taken(tmp_path, task):
    other = RunDir.open(tmp_path).task("other", {"seed": 1}, 8, 3)
    other.write(1, RESULT)
    task.path(1).write_bytes(other.path(1).read_bytes())
    assert task.read(1) is None


def test_what_a_killed_process_left_half_written_is_removed(task):
    left = task.path(1).with_name(".0001.json.99-abcd.part")
    other = task.path(1).with_name(".0002.json.99-abcd.part")
    for path in (left, other):
        path.write_text("{")
    with task.claim(1):
        assert (left.exists(), other.exists()) == (False, True)


def test_without_locks_only_what_is_old_is_taken_for_left_by_a_killed_process(task, monkeypatch):
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    live, old = (task.path(1).with_name(f".0001.json.99-{name}.part") for name in ("live", "old"))
    for path in (live, old):
        path.write_text("{")
    os.utime(old, (0, time.time() - 3700))
    with task.claim(1) as first, task.claim(1) as second:
        assert (first, second) == (True, True)
        assert (live.exists(), old.exists()) == (True, False)
        task.write(1, RESULT)
    assert task.read(1) == RESULT


def test_one_process_at_a_time_holds_a_claim_and_it_is_free_afterwards(task):
    with task.claim(1) as first, task.claim(1) as second, task.claim(2) as third:
        assert (first, second, third) == (True, False, True)
    with task.claim(1) as again:
        assert again


def test_a_claim_ends_with_its_process(task):
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has threads; the child only takes a lock and dies
        child = os.fork()
    if child == 0:
        with task.claim(1) as mine:
            os.write(writing, b"y" if mine else b"n")
            os.kill(os.getpid(), 9)
    assert os.read(reading, 1) == b"y"
    os.waitpid(child, 0)
    assert task.path(1, ".lock").exists()
    with task.claim(1) as mine:
        assert mine


def test_no_lock_is_left_beside_a_finished_shard(task):
    with task.claim(1):
        task.write(1, RESULT)
    assert {path.name for path in task.path(1).parent.iterdir()} == {"config.json", "0001.json"}


def test_a_shard_that_lacks_what_belongs_to_it_counts_as_missing(tmp_path):
    task = RunDir.open(tmp_path).task("base", {}, 8, 3, complete=lambda task, images, result: images.start == 0)
    task.write(0, RESULT)
    task.write(1, RESULT)
    assert (task.read(0), task.read(1)) == (RESULT, None)
    with task.claim(1):
        assert task.path(1).exists(), "it is not damaged"
