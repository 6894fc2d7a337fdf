import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lipforge
from lipforge.ranks import Rank, own_device, process_group


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


def test_leaving_flushes_what_was_printed_and_skips_the_teardown():
    lines = ["import atexit", "from lipforge.ranks import leave", "atexit.register(print, 'torn down')"]
    code = "\n".join([*lines, "print('done')", "leave(3)"])
    path = {**os.environ, "PYTHONPATH": str(Path(lipforge.__file__).parents[1])}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=path)
    assert (process.returncode, process.stdout) == (3, "done\n")
