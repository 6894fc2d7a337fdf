import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import lipforge
from lipforge.errors import RunError
from lipforge.ranks import Rank, from_first, meet, own_device, process_group
from tests.torchrun import PATHS


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_image_belongs_to_exactly_one_rank(count):
    shares = [Rank(index, count).share(20) for index in range(count)]
    assert sorted(position for share in shares for position in share) == list(range(20))


@pytest.mark.parametrize(
    ("name", "world", "expected"),
    [("cuda", "4", "cuda:2"), ("cuda:1", "4", "cuda:1"), ("cpu", "4", "cpu"), ("cuda", "1", "cuda")],
)
def test_each_process_of_torchrun_gets_a_device_of_its_own(monkeypatch, name, world, expected):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", world)
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert own_device(torch.device(name)) == torch.device(expected)


def test_without_torchrun_there_is_one_process(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with process_group(torch.device("cpu")) as rank:
        assert rank == Rank(0, 1)


def test_what_the_first_rank_has_is_what_every_rank_gets(monkeypatch):
    assert from_first([2]) == [2], "a single process has its own"
    monkeypatch.setattr("lipforge.ranks.joined", lambda: True)
    monkeypatch.setattr(dist, "broadcast_object_list", lambda shared: shared.__setitem__(0, [1]))
    assert from_first([2]) == [1]


def test_leaving_flushes_what_was_printed_and_skips_the_teardown():
    lines = ["import atexit", "from lipforge.ranks import leave", "atexit.register(print, 'torn down')"]
    code = "\n".join([*lines, "print('done')", "leave(3)"])
    path = {**os.environ, "PYTHONPATH": str(Path(lipforge.__file__).parents[1]), "PYTHONUNBUFFERED": ""}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=path)
    assert (process.returncode, process.stdout) == (3, "done\n")


def test_ranks_agree_on_a_name_that_ranks_before_them_did_not_have():
    store = dist.HashStore()
    store.set(f"lipforge-asks/{store.add('lipforge-asks', 1)}", "a rank that died while it waited")
    store.add("lipforge-asks", 1)  # and one that died before it could say its number
    names = []
    for _ in range(2):
        with ThreadPoolExecutor(3) as ranks:
            names.append(set(ranks.map(lambda index: meet(store, index, 3), range(3))))
    assert [len(one) for one in names] == [1, 1]
    assert names[0] != names[1]


@pytest.mark.parametrize("index", [0, 1])
def test_ranks_that_do_not_arrive_are_not_waited_for_for_ever(index):
    with pytest.raises(RunError, match=r"not all of the 2 processes .* after 0\.05 s"):
        meet(dist.HashStore(), index, 2, patience=0.05)


def test_work_uses_the_connection_by_which_the_ranks_have_met():
    """Of 64 ranks that connect anew for each piece of work, some wait for seconds."""
    program = (
        "import torch\n"
        "import torch.distributed as dist\n"
        "from lipforge import ranks\n"
        "from lipforge.runs import open_task, work\n"
        "opened, connect = [], dist.TCPStore\n"
        "dist.TCPStore = lambda *where, **how: opened.append(where) or connect(*where, **how)\n"
        "with ranks.process_group(torch.device('cpu')):\n"
        "    for name in ('first', 'second'):\n"
        "        work(open_task(None, name, {}, 4, 1), lambda images: {}, name, show_progress=False)\n"
        "assert len(opened) == 1, opened\n"
        "ranks.leave(0)\n"
    )
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    shared = {**os.environ, "PYTHONPATH": PATHS, "MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", program], env={**shared, "RANK": str(index), "OMP_NUM_THREADS": "1"})
        for index in range(2)
    ]
    assert [one.wait(timeout=120) for one in ranks] == [0, 0]
