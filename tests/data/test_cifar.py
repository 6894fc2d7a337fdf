import json

import numpy as np
import pytest

from lipforge.data.cifar import read_batches, read_strips
from lipforge.errors import DataError
from tests.data.made import batch_file, pictures, strip_file

IMAGES, LABELS = pictures(10, seed=0)


def test_official_batches_are_joined_in_order():
    files = {"one": batch_file(IMAGES[:4], LABELS[:4]), "two": batch_file(IMAGES[4:], LABELS[4:])}
    images, labels = read_batches(files)
    assert np.array_equal(images, IMAGES)
    assert labels.tolist() == LABELS.tolist()


def test_fine_labels_are_the_labels_of_cifar_100():
    assert read_batches({"train": batch_file(IMAGES, LABELS, key=b"fine_labels")})[1].tolist() == LABELS.tolist()


def test_the_rows_of_a_strip_are_the_images():
    images, labels = read_strips({"a.png": strip_file(IMAGES[:3]), "b.png": strip_file(IMAGES[3:]),
                                  "labels.json": json.dumps(LABELS.tolist()).encode()})  # fmt: skip
    assert np.array_equal(images, IMAGES)
    assert labels.tolist() == LABELS.tolist()


def test_a_batch_without_labels_says_what_it_holds():
    with pytest.raises(DataError, match="one must hold 'data' and 'labels', it holds data, other, batch_label"):
        read_batches({"one": batch_file(IMAGES, LABELS, key=b"other")})


def test_a_batch_with_too_few_pixels_is_reported():
    with pytest.raises(DataError, match="one must have 3072 bytes per label"):
        read_batches({"one": batch_file(IMAGES[:, :2], LABELS)})


@pytest.mark.parametrize(
    ("labels", "message"),
    [(b"[1, 2]", "2 labels for 10 images"), (b"[1, 2", "not a JSON list"), (b'["a"]', "list of whole numbers")],
)
def test_wrong_labels_beside_a_strip_are_reported(labels, message):
    with pytest.raises(DataError, match=message):
        read_strips({"a.png": strip_file(IMAGES), "labels.json": labels})


def test_a_truncated_strip_is_reported():
    with pytest.raises(DataError, match=r"a\.png is not a readable PNG"):
        read_strips({"a.png": strip_file(IMAGES)[:3000], "labels.json": b"[]"})
