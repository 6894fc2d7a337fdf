"""Handing out shards: each is computed once, whoever asks, and a kill costs no more than the shard it hits."""

import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import lipforge.progress
import lipforge.runs.workers
from lipforge.errors import RunError
from lipforge.runs import RunDir, open_task, work
from lipforge.runs.workers import _Memory


def squares(images: range) -> dict[str, Any]:
    return {"first": images.start, "squares": tuple(one**2 for one in images)}


def forked(do: Callable[[], None]) -> int:
    """Run `do` in a child process and give its number; `do` must use no torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        do()
        code = 0
    finally:
        os._exit(code)


def wait_until(happened: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline, f"{what} within a minute"
        time.sleep(0.01)


def wait(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("on_disk", [True, False])
def test_all_shards_come_in_order_and_as_json_knows_them(tmp_path, on_disk):
    task = open_task(RunDir.open(tmp_path) if on_disk else None, "squares", {}, 7, 3)
    assert work(task, squares, "squaring") == [
        {"first": 0, "squares": [0, 1, 4]},
        {"first": 3, "squares": [9, 16, 25]},
        {"first": 6, "squares": [36]},
    ]


def test_only_what_is_missing_or_damaged_is_computed(tmp_path):
    task = RunDir.open(tmp_path).task("squares", {}, 7, 3)
    whole = work(task, squares, "squaring")
    asked: list[range] = []

    def compute(images: range) -> dict[str, Any]:
        asked.append(images)
        return squares(images)

    task.path(0).unlink()
    task.path(2).write_bytes(task.path(2).read_bytes()[:-9])
    with pytest.warns(UserWarning, match="0002.json is damaged"):
        assert work(task, compute, "squaring") == whole
    assert asked == [range(0, 3), range(6, 7)]
    assert work(task, compute, "squaring") == whole
    assert len(asked) == 2


@pytest.mark.parametrize("on_disk", [True, False])
def test_work_ends_at_the_first_look_that_says_it_is_enough(tmp_path, on_disk):
    """Shards of 2 images and a look after every 3: after 4, 6, 10, 12 and all 13 images."""
    task = open_task(RunDir.open(tmp_path) if on_disk else None, "squares", {}, 13, 2)
    asked: list[int] = []

    def enough(shards: list[dict[str, Any]]) -> bool:
        asked.append(len(shards))
        return len(shards) >= 4

    done = work(task, squares, "squaring", enough=enough, look_every=3)
    assert asked == [2, 3, 5]
    assert [shard["first"] for shard in done] == [0, 2, 4, 6, 8]


def test_shards_beyond_the_look_that_ended_the_work_change_nothing(tmp_path):
    """As other ranks, or an earlier call that wanted all, may have left them."""
    task = RunDir.open(tmp_path).task("squares", {}, 12, 2)
    work(task, squares, "squaring")

    def compute(images: range) -> dict[str, Any]:
        raise AssertionError(f"{images} was computed before")

    done = work(task, compute, "squaring", enough=lambda shards: True, look_every=4)
    assert [shard["first"] for shard in done] == [0, 2]
    assert len(work(task, compute, "squaring")) == 6
    assert len(work(task, compute, "squaring", enough=lambda shards: False, look_every=4)) == 6


def test_an_error_in_one_shard_keeps_the_others(tmp_path):
    task = RunDir.open(tmp_path).task("squares", {}, 7, 3)

    def compute(images: range) -> dict[str, Any]:
        if images.start == 6:
            raise ValueError("image 6")
        return squares(images)

    with pytest.raises(ValueError, match="image 6"):
        work(task, compute, "squaring")
    assert dict(task.news({})).keys() == {0, 1}
    assert len(work(task, squares, "squaring")) == 3


def test_two_processes_on_one_directory_share_the_work(tmp_path):
    task = RunDir.open(tmp_path).task("squares", {}, 24, 1)
    log = tmp_path / "log"

    def process() -> None:
        def compute(images: range) -> dict[str, Any]:
            with open(log, "a") as file:
                file.write(f"{os.getpid()} {images.start}\n")
            # Whoever is first waits in its first shard for the other, so neither can do all the work alone.
            wait_until(lambda: len({line.split()[0] for line in log.read_text().splitlines()}) == 2, "both at work")
            return squares(images)

        shards = work(task, compute, "squaring")
        (tmp_path / f"{os.getpid()}.json").write_text(json.dumps(shards))

    children = [forked(process), forked(process)]
    assert [wait(child) for child in children] == [0, 0]
    by, shard = zip(*(line.split() for line in log.read_text().splitlines()), strict=True)
    assert sorted(map(int, shard)) == list(range(24)), "each shard once"
    assert set(map(int, by)) == set(children), "and not all by one"
    expected = json.loads(json.dumps([squares(range(one, one + 1)) for one in range(24)]))
    assert [json.loads((tmp_path / f"{child}.json").read_text()) for child in children] == [expected, expected]


def test_the_shard_of_a_process_that_dies_is_computed_by_one_that_waits(tmp_path):
    task = RunDir.open(tmp_path).task("squares", {}, 2, 1)

    def dying() -> None:
        def compute(images: range) -> dict[str, Any]:
            (tmp_path / "claimed").touch()
            time.sleep(0.5)
            os.kill(os.getpid(), 9)
            raise AssertionError

        work(task, compute, "squaring")

    child = forked(dying)
    wait_until((tmp_path / "claimed").exists, "a shard is claimed")
    assert len(work(task, squares, "squaring")) == 2
    assert wait(child) == -9


def test_progress_counts_images_and_shows_the_status(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(lipforge.progress, "PATIENCE", 0.0)

    class Largest:
        largest = 0

        def see(self, shard: Any) -> None:
            self.largest = max(shard["squares"])

        def __str__(self) -> str:
            return f"up to {self.largest}"

    def compute(images: range) -> dict[str, Any]:
        wait_until(lambda: threading.Timer not in map(type, threading.enumerate()), "the bar starts")
        return squares(images)

    work(open_task(None, "squares", {}, 7, 3), compute, "squaring", status=Largest(), show_progress=True)
    shown = capsys.readouterr().err
    assert "7/7" in shown
    assert "up to 36" in shown


def test_the_bar_says_while_it_waits_for_another_process_and_no_longer(tmp_path, monkeypatch):
    said: list[tuple[int, str]] = []

    @contextmanager
    def listening(*label: Any, **options: Any) -> Iterator[Callable[..., None]]:
        yield lambda advance, note="": said.append((advance, note))

    monkeypatch.setattr(lipforge.runs.workers, "progress", listening)
    task = open_task(RunDir.open(tmp_path), "squares", {}, 4, 2)
    with task.claim(1) as mine:
        assert mine
        waiting = threading.Thread(target=work, args=(task, squares, "squaring"))
        waiting.start()
        wait_until(lambda: said[-1:] == [(0, "waiting for shards of other processes: 1")], "it says so")
        task.write(1, squares(task.images(1)))
    waiting.join(timeout=60)
    assert said[-1] == (2, "")


def test_a_rank_that_has_not_joined_the_others_is_told_to(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RunError, match="process_group"):
        work(open_task(None, "squares", {}, 7, 3), squares, "squaring")


def test_a_result_that_json_cannot_hold_is_refused_at_once(tmp_path):
    for run in (RunDir.open(tmp_path), None):
        with pytest.raises(ValueError, match="not JSON compliant"):
            work(open_task(run, "nan", {}, 1, 1), lambda images: {"nan": float("nan")}, "failing")
    assert not list(Path(tmp_path).glob("shards/nan/0*.json"))


def test_ranks_in_memory_ask_the_store_only_for_shards_that_are_finished():
    """With 64 ranks and hundreds of shards, asking for each one that is missing would keep the store busy."""
    asked: list[str] = []

    class Store(dist.HashStore):
        def check(self, keys: list[str]) -> bool:
            asked.extend(keys)
            return super().check(keys)

    store = Store()
    here, there = _Memory(store), _Memory(store)
    assert list(there.news({})) == []
    here.write(5, {"squares": [25]})
    here.write(3, {"squares": [9]})
    assert dict(there.news({})) == {5: {"squares": [25]}, 3: {"squares": [9]}}
    assert list(there.news({5: {}, 3: {}})) == []
    assert len(asked) == 2


def test_a_shard_that_a_rank_has_counted_but_not_yet_set_is_read_later():
    store = dist.HashStore()
    here, there = _Memory(store), _Memory(store)
    late = store.add("finished", 1)
    here.write(1, {"squares": [1]})
    assert dict(there.news({})) == {1: {"squares": [1]}}
    store.set(f"shard/{late}", json.dumps([0, json.dumps({"squares": [0]})]))
    assert dict(there.news({1: {}})) == {0: {"squares": [0]}}
