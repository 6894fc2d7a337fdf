import json
import pickle

import pytest
import torch

from lipforge.data import get_data, list_data, load_data
from lipforge.errors import DataError, InputError
from lipforge.records import to_json


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_named_split_is_just_that_split(split):
    data = load_data(f"cifar10-sample:{split}")
    assert (data.name, len(data), data.training) == (f"cifar10-sample:{split}", 500, None)


def test_a_limit_keeps_the_first_images_or_random_ones_with_a_seed():
    assert load_data("cifar10-sample", limit=20).describe()["name"] == "cifar10-sample/first 20"
    assert load_data("cifar10-sample", limit=20, seed=4).describe()["seed"] == 4


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cifar11", "did you mean cifar10 or cifar100"),
        ("CIFAR10", "did you mean cifar10"),
        ("fashionmnist:test", "did you mean fashion-mnist"),
        ("foldr:/data", "did you mean folder"),
        ("", "Known names: cifar10"),
        ("cifar10:valid", "'cifar10:valid' names no split of cifar10; it has train, test"),
        ("folder:", "lacks a path: folder:PATH"),
        ("npz", "lacks a path: npz:PATH"),
        (torch.zeros(2, 3, 4, 4), "got Tensor; for arrays and tensors use from_arrays"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(spec, message):
    with pytest.raises(InputError, match=message):
        load_data(spec)


def test_a_bare_path_suggests_the_folder_kind(tmp_path):
    with pytest.raises(InputError, match=f"did you mean folder:{tmp_path}"):
        load_data(str(tmp_path))


def test_a_limit_below_one_is_refused():
    with pytest.raises(InputError, match="limit must be at least 1, got 0"):
        load_data("cifar10-sample", limit=0)


def test_data_with_training_images_can_be_sent_to_another_process():
    copy = pickle.loads(pickle.dumps(load_data("cifar10-sample", limit=5)))
    assert copy.training.name == "cifar10-sample:train"
    assert copy[0][0].equal(load_data("cifar10-sample")[0][0])


def test_the_list_names_every_set_and_says_what_is_ready():
    entries = {entry.name: entry for entry in list_data()}
    assert entries["cifar10-sample"].ready
    assert not entries["cifar10"].ready
    assert dict(entries["mnist"].counts) == {"train": 60_000, "test": 10_000}
    assert "folder:PATH" in entries
    assert len(json.loads(to_json(list_data()))) == len(entries)


def test_getting_a_set_that_cannot_be_had_says_why():
    with pytest.raises(DataError, match="Fashion-MNIST could not be found or fetched"):
        get_data("fashion-mnist", download=False)


def test_getting_the_sample_is_always_possible():
    assert get_data("cifar10-sample").ready
