import pytest
import torch

from lipforge.cli.ranks import Rank, own_device


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_image_belongs_to_exactly_one_rank(count):
    shares = [Rank(index, count).share(20) for index in range(count)]
    assert sorted(position for share in shares for position in share) == list(range(20))


@pytest.mark.parametrize(
    ("name", "world", "expected"),
    [("cuda", "4", "cuda:2"), ("cuda:1", "4", "cuda:1"), ("cpu", "4", "cpu"), ("cuda", "1", "cuda")],
)
def test_each_process_of_torchrun_gets_a_device_of_its_own(monkeypatch, name, world, expected):
    monkeypatch.setenv("WORLD_SIZE", world)
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert own_device(torch.device(name)) == torch.device(expected)
