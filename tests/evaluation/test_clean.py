import pytest
import torch
from torch import nn

from lipforge.errors import InputError, ModelError
from lipforge.evaluation import clean_accuracy
from tests.nets import ResidualNet, images, seeded


def test_the_accuracy_is_counted_exactly():
    model, x = seeded(ResidualNet), images(50)
    labels = model(x).argmax(dim=1)
    labels[:7] = (labels[:7] + 1) % 10
    result = clean_accuracy(model, (x, labels), batch_size=8)
    assert (result.count, result.correct, result.accuracy) == (50, 43, 0.86)
    assert result.interval[0] < 0.86 < result.interval[1]
    assert str(result).startswith("86.00 [")


def test_data_without_labels_is_refused():
    with pytest.raises(InputError, match="data must carry labels"):
        clean_accuracy(seeded(ResidualNet), images(4))


def test_logits_that_are_not_finite_name_the_image():
    class Broken(nn.Module):
        def forward(self, x):
            return x.flatten(1)[:, :10] / (x[:, :1, 0, 0] != 1)

    x = images(9)
    x[:, 0, 0, 0] = 0.5
    x[6, 0, 0, 0] = 1.0
    data = x, torch.zeros(9, dtype=torch.long)
    with pytest.raises(ModelError, match=r"NaN or infinite logits for image 6$"):
        clean_accuracy(Broken().eval(), data, batch_size=4)
    x[7, 0, 0, 0] = 1.0
    with pytest.raises(ModelError, match=r"for image 6 and 1 more of its batch$"):
        clean_accuracy(Broken().eval(), data, batch_size=4)
