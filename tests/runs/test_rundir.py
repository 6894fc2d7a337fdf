"""The run directory: what identifies a task, and results that say what they are."""

import errno
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lipforge.errors import InputError, RunError
from lipforge.results import CleanResult, record
from lipforge.runs import RunDir, open_task, work
from lipforge.runs.tasks import held

CONFIG = {"attack": "pgd", "model": {"tensors": "ab", "view": None}, "eps": 8 / 255}


def test_the_same_task_again_is_the_same_task(tmp_path):
    first = RunDir.open(tmp_path).task("base", CONFIG, 10, 4)
    again = RunDir.open(tmp_path).task("base", dict(reversed(CONFIG.items())), 10, 4)
    assert first == again
    assert [first.images(index) for index in range(first.shards)] == [range(0, 4), range(4, 8), range(8, 10)]


def test_another_config_is_refused_and_every_difference_named(tmp_path):
    run = RunDir.open(tmp_path)
    run.task("base", CONFIG, 10, 4)
    other = {"attack": "pgd", "model": {"tensors": "cd", "view": "forged"}, "seed": 1}
    with pytest.raises(RunError) as refusal:
        run.task("base", other, 11, 4)
    named = str(refusal.value)
    assert "model.tensors was 'ab', now 'cd'" in named
    assert "model.view was None, now 'forged'" in named
    assert f"eps was {8 / 255}, now None" in named
    assert "seed was None, now 1" in named
    assert "count was 10, now 11" in named
    assert "attack" not in named.partition("name:")[2]
    assert str(tmp_path / "shards" / "base") in named


def test_of_digests_that_differ_only_the_place_is_named(tmp_path):
    run = RunDir.open(tmp_path)
    run.task("base", {"model": {"tensors": "a" * 64}}, 10, 4)
    with pytest.raises(RunError, match=r"under the same name: model has other weights\. Ask"):
        run.task("base", {"model": {"tensors": "b" * 64}}, 10, 4)


def test_what_differs_inside_a_list_is_named_by_its_place(tmp_path):
    run = RunDir.open(tmp_path)
    run.task("audit", {"surrogates": [{"name": "a", "tensors": "a" * 64}, {"name": "b", "tensors": "c" * 64}]}, 10, 4)
    with pytest.raises(
        RunError, match=r"same name: surrogates\[1\]\.name was 'b', now 'd'; surrogates\[1\] has other weights\."
    ):
        run.task(
            "audit", {"surrogates": [{"name": "a", "tensors": "a" * 64}, {"name": "d", "tensors": "e" * 64}]}, 10, 4
        )


@pytest.mark.parametrize("links", [True, False])
def test_of_two_configs_at_the_same_time_exactly_one_is_taken(tmp_path, monkeypatch, links):
    """Both have seen that there is no config; without hard links the second looks once more."""
    run, both = RunDir.open(tmp_path), threading.Barrier(2)
    real = os.link

    def link(source: Path, target: Path) -> None:
        both.wait(60)
        if not links:
            deadline = time.monotonic() + 60
            while "second" in source.read_text() and not target.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        real(source, target)

    monkeypatch.setattr("os.link", link)

    def taken(name: str) -> bool:
        try:
            run.task("base", {"name": name}, 10, 4)
        except RunError:
            return False
        return True

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(taken, ["first", "second"])) == [False, True]
    assert [path.name for path in (tmp_path / "shards" / "base").iterdir()] == ["config.json"]


def test_a_damaged_config_is_an_error_that_names_the_file(tmp_path):
    run = RunDir.open(tmp_path)
    run.task("base", CONFIG, 10, 4)
    (tmp_path / "shards" / "base" / "config.json").write_text('{"config": ')
    with pytest.raises(RunError, match=r"config\.json is not valid JSON"):
        run.task("base", CONFIG, 10, 4)


def test_a_result_says_what_it_is_and_comes_back(tmp_path):
    with RunDir.open(tmp_path) as run:
        result = CleanResult(4, 1, 0.25, (0.01, 0.81))
        path = run.write_result("clean-a", result)
        assert run.read_result("clean-a") == result
    expected = {"kind": "clean", "format": 2, "count": 4, "correct": 1, "accuracy": 0.25, "interval": [0.01, 0.81]}
    assert json.loads(path.read_text()) == {**expected, "change": None}
    assert path == tmp_path / "results" / "clean-a.json"
    assert run.results() == ["clean-a"]


def test_a_run_directory_or_result_of_another_format_is_refused_with_the_way_out(tmp_path):
    run = RunDir.open(tmp_path)
    folder = tmp_path / "shards" / "base"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"config": CONFIG, "count": 10, "size": 4}))
    with pytest.raises(RunError, match=r"shards/base was written in format 1 .* with a new run directory"):
        run.task("base", CONFIG, 10, 4)
    path = run.write_result("a", CleanResult(4, 1, 0.25, (0.01, 0.81)))
    path.write_text(path.read_text().replace('"format": 2', '"format": 1'))
    with pytest.raises(InputError, match=r"a\.json was written in format 1 .* run the command again"):
        run.read_result("a")


def test_only_a_result_is_recorded():
    with pytest.raises(InputError, match=r"must be one of lipforge\.results, got dict"):
        record({"count": 3})


def test_environments_are_recorded_once_each(tmp_path):
    for _ in range(2):
        RunDir.open(tmp_path)
    (recorded,) = json.loads((tmp_path / "environment.json").read_text())["environments"]
    assert {"lipforge", "python", "torch", "threads", "accelerators"} <= recorded.keys()
    path = tmp_path / "environment.json"
    path.write_text(json.dumps({"environments": [{**recorded, "torch": "older"}]}))
    RunDir.open(tmp_path)
    assert [one["torch"] for one in json.loads(path.read_text())["environments"]] == ["older", recorded["torch"]]


def test_environments_of_sessions_that_start_together_are_all_recorded(tmp_path):
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: RunDir.open(tmp_path, command=f"session {number}"), range(24)))
    recorded = json.loads((tmp_path / "environment.json").read_text())["environments"]
    assert sorted(one["command"] for one in recorded) == sorted(f"session {number}" for number in range(24))


def test_a_missing_result_and_a_file_in_the_way_are_named(tmp_path):
    with pytest.raises(RunError, match=r"no file .*nothing\.json"):
        RunDir.open(tmp_path).read_result("nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file cannot be a run directory"):
        RunDir.open(tmp_path / "file")


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b"])
def test_names_stay_inside_the_directory(tmp_path, name):
    with pytest.raises(InputError, match="name takes letters"):
        RunDir.open(tmp_path).task(name, {}, 1, 1)


@pytest.mark.parametrize(("count", "size"), [(0, 1), (3, 0), (3, -1)])
def test_a_task_without_images_or_with_empty_shards_is_refused(count, size):
    with pytest.raises(InputError, match="at least 1 image in shards of at least 1"):
        open_task(None, "base", {}, count, size)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_can_hold_a_run(tmp_path, monkeypatch, code):
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(code, "no locks")

    monkeypatch.setattr("fcntl.flock", no_locks)
    task = RunDir.open(tmp_path).task("base", CONFIG, 4, 4)
    assert work(task, lambda images: {"sum": sum(images)}, "x", show_progress=False) == [{"sum": 6}]


def test_a_full_disk_is_no_free_shard(tmp_path, monkeypatch):
    task = RunDir.open(tmp_path).task("base", CONFIG, 4, 4)

    def full(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fcntl.flock", full)
    with pytest.raises(OSError, match="No space left"), task.claim(0):
        pass


def test_a_lock_that_stays_taken_or_a_failed_write_holds_nobody_up_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("lipforge.runs.rundir.PATIENCE", 0.1)
    with held(tmp_path / ".environment.lock", 0) as lock:
        assert lock == "held"
        RunDir.open(tmp_path)
    monkeypatch.setattr("lipforge.runs.rundir.write_json", lambda *_: (_ for _ in ()).throw(OSError(28, "No space")))
    with pytest.raises(RunError, match="No space"):
        RunDir.open(tmp_path, command="another session")
    with held(tmp_path / ".environment.lock", 0) as lock:
        assert lock == "held"
