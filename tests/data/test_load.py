import json
import pickle
import shutil

import numpy as np
import pytest
import torch

from lipforge.data import FolderOptions, check_data, content_digest, get_data, list_data, load_data
from lipforge.data.known import SAMPLE
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


SMALL = FolderOptions(resize=40, crop=32, workers=0)


def test_the_report_of_the_sample_has_its_pinned_digest():
    report = check_data("cifar10-sample")
    assert (report.count, report.classes, report.image) == (500, 10, (3, 32, 32))
    assert sum(report.histogram) == 500
    assert (report.low, report.high) == (0.0, 1.0)
    assert report.digest == SAMPLE.digests["test"]
    assert json.loads(to_json(report))["class_names"][3] == "cat"


def test_float_arrays_are_reported_as_they_are(tmp_path):
    images = np.linspace(0.25, 0.5, 200 * 12, dtype=np.float32).reshape(200, 3, 2, 2)
    labels = np.arange(200) % 2
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    report = check_data(f"npz:{tmp_path / 'a.npz'}")
    assert (report.low, report.high, report.histogram) == (0.25, 0.5, (100, 100))
    assert report.digest == content_digest([(images, labels)])


def test_unreadable_files_are_named_and_counted_even_when_skipping(imagenet_like, tmp_path):
    shutil.copytree(imagenet_like / "n00", tmp_path / "set" / "n00")
    for name in ("img_0003.JPEG", "img_0009.JPEG"):
        (tmp_path / "set" / "n00" / name).write_bytes(b"")
    options = FolderOptions(resize=40, crop=32, workers=0, on_error="skip")
    report = check_data(f"folder:{tmp_path / 'set'}", folder=options)
    assert (report.count, report.histogram, len(report.unreadable)) == (98, (98,), 2)
    assert "img_0009.JPEG" in report.unreadable[1]


def test_a_folder_is_read_the_same_with_and_without_workers(imagenet_like):
    helped = FolderOptions(resize=40, crop=32, workers=2)
    assert check_data(f"folder:{imagenet_like}", folder=SMALL) == check_data(f"folder:{imagenet_like}", folder=helped)


def test_a_folder_of_damage_has_no_report(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(b"")
    with pytest.raises(DataError, match="none of the 1 images"):
        check_data(f"folder:{tmp_path}")
