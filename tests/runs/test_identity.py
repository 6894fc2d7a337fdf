"""What tells one model or data set from another when work is resumed."""

import numpy as np
import pytest
import torch
from torch import nn

from lipforge.attacks import Prepared
from lipforge.data import from_arrays, take
from lipforge.errors import InputError
from lipforge.runs.identity import data_identity, identified, model_identity


class Quantised(nn.Module):
    """A setting that no tensor holds and that is not printed."""

    def __init__(self, levels):
        super().__init__()
        self.levels = levels

    def forward(self, x):
        return (x * self.levels).round() / self.levels


def test_a_setting_that_is_neither_a_tensor_nor_printed_tells_models_apart():
    assert repr(Quantised(8)) == repr(Quantised(16))
    assert model_identity(Quantised(8)) == model_identity(Quantised(8))
    assert model_identity(Quantised(8)) != model_identity(Quantised(16))
    nested = [model_identity(nn.Sequential(nn.Identity(), Quantised(levels))) for levels in (8, 16)]
    assert nested[0] != nested[1]


def test_training_mode_is_no_part_of_it():
    assert model_identity(nn.Dropout(0.5).train()) == model_identity(nn.Dropout(0.5).eval())


def test_a_prepared_model_is_its_original():
    model = nn.Linear(2, 2)
    prepared = Prepared(model, lambda x: x)
    assert identified(prepared, None, in_run=True) == model_identity(model)


def test_a_function_in_a_run_must_be_named():
    with pytest.raises(InputError, match="cannot be told from another when a run is resumed; say what it is"):
        identified(torch.relu, None, in_run=True)
    assert identified(torch.relu, {"model": "mine"}, in_run=True)["identity"] == {"model": "mine"}
    assert "function" in identified(torch.relu, None, in_run=False)


def test_one_other_label_or_pixel_is_other_data_also_in_a_view():
    images, labels = np.zeros((200, 3, 4, 4), np.uint8), np.zeros(200, int)
    other_label, other_pixel = labels.copy(), images.copy()
    other_label[101], other_pixel[101, 0, 0, 0] = 1, 1
    sets = [from_arrays(x, y, classes=2) for x, y in ((images, labels), (images, other_label), (other_pixel, labels))]
    for found in ([data_identity(data) for data in sets], [data_identity(take(data, 150)) for data in sets]):
        assert found[0] != found[1]
        assert found[0] != found[2]
    assert data_identity(sets[0]) == data_identity(from_arrays(images.copy(), labels, classes=2))
