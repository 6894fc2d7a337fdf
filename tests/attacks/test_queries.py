"""What a model raises, and what of it a user gets to see."""

import pytest
import torch
from torch import nn

from lipforge.attacks import PGD
from lipforge.errors import ModelError
from lipforge.types import Threat

IMAGES, LABELS = torch.rand(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64)


def test_a_model_for_images_of_another_size_is_a_model_error_with_the_shape():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 10)).eval()
    with pytest.raises(ModelError, match=r"on images of the shape \(3, 8, 8\): RuntimeError: mat1 and") as found:
        PGD(steps=1).run(model, IMAGES, LABELS, threat=Threat("linf", 0.1))
    assert isinstance(found.value.__cause__, RuntimeError)


def test_a_lipforge_error_of_the_model_stays_what_it_is():
    def model(images):
        raise ModelError("of its own")

    with pytest.raises(ModelError, match=r"^of its own$"):
        PGD(steps=1).run(model, IMAGES, LABELS, threat=Threat("linf", 0.1))
