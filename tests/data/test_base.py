import hashlib

import numpy as np
import pytest
import torch

from lipforge.batching import ImageData
from lipforge.data import from_arrays
from lipforge.data.base import check_indices, content_digest, stream
from lipforge.errors import InputError
from lipforge.sources import unit_range


class Plain:
    """The least that the ImageData protocol asks for."""

    name, classes = "plain", 4

    def __len__(self):
        return 4

    def batch(self, indices):
        labels = torch.tensor(indices)
        return (labels / 4).reshape(-1, 1, 1, 1), labels

    def batches(self, batch_size):
        raise AssertionError("not needed here")


def test_stream_reads_any_image_data_in_the_order_asked_for():
    got = [labels.tolist() for _, labels in stream(Plain(), np.array([3, 0, 2]), 2)]
    assert got == [[3, 0], [2]]


def test_stream_refuses_a_batch_size_of_zero():
    with pytest.raises(InputError, match="batch_size must be at least 1"):
        list(stream(Plain(), np.arange(4), 0))


def test_bytes_become_the_nearest_float32_of_k_over_255():
    every = np.arange(256, dtype=np.uint8)
    expected = (np.arange(256, dtype=np.float64) / 255).astype(np.float32)
    assert unit_range(every).numpy().tolist() == expected.tolist()


def test_digest_is_sha256_of_pixels_then_labels_whatever_the_pieces():
    images, labels = np.arange(24, dtype=np.uint8).reshape(4, 1, 2, 3), np.array([3, 2, 1, 0])
    expected = hashlib.sha256(bytes(range(24)) + b"".join(int(y).to_bytes(8, "little") for y in labels)).hexdigest()
    assert content_digest([(images, labels)]) == expected
    assert content_digest([(images[:1], labels[:1]), (images[1:], labels[1:])]) == expected


@pytest.mark.parametrize("indices", [[4], [-1], [0.5], [[0]]])
def test_indices_outside_the_set_or_not_whole_are_refused(indices):
    with pytest.raises(InputError, match="indices must"):
        check_indices(indices, count=4)


def test_no_indices_are_no_images():
    images, labels = from_arrays(np.zeros((2, 1, 4, 4)), [0, 1]).batch([])
    assert images.shape == (0, 1, 4, 4)
    assert labels.shape == (0,)


def three():
    return from_arrays(np.zeros((3, 1, 4, 4)), [0, 1, 2])


def test_an_index_counts_from_the_end_as_in_a_list():
    assert [three()[index][1] for index in (0, 2, -1, -3)] == [0, 2, 2, 0]


@pytest.mark.parametrize("index", [3, -4])
def test_an_index_outside_the_set_is_an_index_error(index):
    with pytest.raises(IndexError, match="outside a set of 3 images"):
        three()[index]


def test_a_loop_over_a_set_ends_with_its_last_image():
    assert [label for _, label in three()] == [0, 1, 2]


def test_the_least_class_satisfies_the_protocol():
    assert isinstance(Plain(), ImageData)
