import hashlib
import os
from dataclasses import fields
from importlib.resources import files

import numpy as np
import pytest

from lipforge.data import load_data
from lipforge.data.fetch import cached_path, read_cached
from lipforge.data.known import FILES, KNOWN, SAMPLE, SPLITS, KnownSet, Layout, load_sample
from lipforge.records import read_json


@pytest.mark.parametrize("known", KNOWN.values(), ids=lambda known: known.name)
def test_every_layout_names_files_for_both_splits(known):
    assert known.layouts
    assert all(set(layout.files) == set(SPLITS) == set(known.counts) for layout in known.layouts)


def test_cifar_100_has_a_hundred_sorted_names():
    names = KNOWN["cifar100"].class_names
    assert len(set(names)) == 100
    assert list(names) == sorted(names)


@pytest.mark.zoo
@pytest.mark.parametrize("name", ["CIFAR10", "CIFAR100"])
def test_checksums_are_those_that_torchvision_publishes(name, torchvision):
    peer, layout = getattr(torchvision.datasets, name), KNOWN[name.lower()].layouts[0]
    assert (layout.archive, layout.url, layout.md5) == (peer.filename, peer.url, peer.tgz_md5)
    assert dict(layout.file_md5) == dict([*peer.train_list, *peer.test_list])
    assert layout.inside == peer.base_folder


@pytest.mark.parametrize("known", KNOWN.values(), ids=lambda known: known.name)
def test_downloads_use_https(known):
    assert all(layout.url.startswith("https://") for layout in known.layouts if layout.url)


USERS_CACHE = os.environ.get("LIPFORGE_CACHE")

# The official CIFAR-10 test labels begin so; see any tutorial that shows its first images: cat, ship, ship, airplane.
FIRST = ["cat", "ship", "ship", "airplane", "frog", "frog", "automobile", "frog", "cat", "automobile"]


def test_the_sample_has_500_images_of_each_split_with_labels():
    train, test = load_sample("train"), load_sample("test")
    assert train.images.shape == test.images.shape == (500, 3, 32, 32)
    assert [test.class_names[label] for label in test.labels[:10]] == FIRST
    assert set(train.labels.tolist()) == set(test.labels.tolist()) == set(range(10))


def test_the_sample_takes_less_than_three_megabytes():
    folder = files("lipforge.data") / "files"
    assert sum(len(file.read_bytes()) for file in folder.iterdir()) < 3_000_000


def test_the_sample_is_test_by_default_and_knows_its_training_images():
    data = load_data("cifar10-sample")
    assert np.array_equal(data.batch(range(500))[1].numpy(), load_sample("test").labels)
    assert data.training is not None
    assert data.training.name == "cifar10-sample:train"


def test_nobody_can_change_the_shared_images():
    with pytest.raises(ValueError, match="read-only"):
        load_sample("test").images[0] = 0


# MD5 of the files of the authors' binary archive (data_batch_1.bin, ..., test_batch.bin), as others publish them.
BINARY_MD5 = {
    "train": [
        "5dd7e06a14cb22eb9f671a540d1b7c25",
        "5ea93a67294ea407fff1d09f752e9692",
        "942cd6a4bcdd0dd3c604fbe906cb4421",
        "ae636b3ba5c66a11e91e8cb52e771fcb",
        "53f37980c15c3d472c316c40844f3f0d",
    ],
    "test": ["803d5f7f4d78ea53de84dbe85f74fb6d"],
}


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_whole_set_is_the_authors_and_begins_with_the_sample(split, monkeypatch):
    if USERS_CACHE is None:
        monkeypatch.delenv("LIPFORGE_CACHE")
    else:
        monkeypatch.setenv("LIPFORGE_CACHE", USERS_CACHE)
    if not cached_path(KNOWN["cifar10"], split).exists():
        pytest.skip("CIFAR-10 is not in the cache; `lipforge data get cifar10` puts it there")
    data = read_cached(KNOWN["cifar10"], split)
    assert data is not None
    assert np.array_equal(data.images[:500], load_sample(split).images)
    assert np.array_equal(data.labels[:500], load_sample(split).labels)
    rows = np.concatenate([data.labels.astype(np.uint8)[:, None], data.images.reshape(len(data), -1)], axis=1)
    assert [hashlib.md5(part.tobytes()).hexdigest() for part in np.split(rows, len(data) // 10_000)] == BINARY_MD5[
        split
    ]
    assert np.bincount(data.labels).tolist() == [len(data) // 10] * 10


def test_the_table_has_no_field_that_nobody_reads_and_pins_every_split():
    """An unknown key, such as a misspelt digest, would be ignored."""
    for entry in read_json(FILES / "known.json"):
        assert set(entry) <= {field.name for field in fields(KnownSet)}
        known = {**KNOWN, SAMPLE.name: SAMPLE}[entry["name"]]
        for layout in entry["layouts"]:
            assert set(layout) <= {field.name for field in fields(Layout)}
        pinned = set(known.digests) == set(known.counts)
        assert pinned or all(layout.md5 or layout.file_md5 for layout in known.layouts)
