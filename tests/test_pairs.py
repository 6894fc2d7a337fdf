"""Images and labels in memory."""

import pytest
import torch

from lipforge.batching import ImageData, as_data
from lipforge.errors import InputError
from tests.training.toys import toy_images


def test_a_pair_gives_the_images_at_the_positions_asked_for():
    images, labels = toy_images(10)
    data: ImageData = as_data((images, labels))
    x, y = data.batch([7, 2])
    assert torch.equal(x, images[[7, 2]])
    assert y.tolist() == [3, 2]
    assert (len(data), data.classes) == (10, 4)
    assert [len(part) for part, _ in data.batches(4)] == [4, 4, 2]


def test_labels_that_are_not_one_per_image_are_refused():
    images, labels = toy_images(10)
    with pytest.raises(InputError, match="one per image"):
        as_data((images, labels[:9]))
