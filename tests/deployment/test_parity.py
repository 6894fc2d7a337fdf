import pytest
import torch
from torch import Tensor, nn

import lipforge as lf
from lipforge.deployment.parity import compare, on_threshold
from lipforge.errors import ExportError
from lipforge.forge import parse_mask


class Pooled(nn.Module):
    """A mask on the mean of each channel, and a linear layer that passes it on."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3, bias=False)
        nn.init.eye_(self.fc.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.mean(dim=(2, 3)))


def pooled(threshold: float, mask: str = "step") -> nn.Module:
    model = Pooled().eval()
    forge = lf.insert_(model, [lf.Site("fc", "test", "Linear", 3, (1, 3), -1)], mask=parse_mask(mask), ratio=0.5)["fc"]
    forge.set_bound(torch.tensor(2 * threshold))
    return model


def grey(*values: float) -> Tensor:
    """An image per value, whose channels are the value, the value + 0.1 and 0.99."""
    return torch.stack([torch.tensor([v, v + 0.1, 0.99]).view(3, 1, 1).expand(3, 7, 7) for v in values])


def test_equal_functions_agree_to_the_bit():
    model = pooled(0.3)
    found = compare(model, model, grey(0.1, 0.5, 0.7), batch_size=2)
    assert (found.count, found.equal, found.largest, found.apart) == (3, 3, 0.0, 0)
    assert str(found) == "3 of 3 classes equal, logits within 0.0e+00 (tolerance 1.0e-04)"


def test_an_image_on_a_threshold_is_set_apart_and_the_others_still_count():
    model, lower = pooled(0.01), pooled(0.01 * (1 - 1e-5))
    x = grey(0.5, 0.01 * (1 - 1e-7), 0.6)
    found = compare(model, lower, x, batch_size=8)
    assert (found.count, found.equal, found.apart) == (3, 3, 1)
    assert found.apart_largest == pytest.approx(0.01, abs=1e-6)
    assert found.largest == 0
    assert "1 image has an activation within rounding of a threshold" in str(found)


def test_a_difference_that_no_threshold_explains_is_an_error_that_names_the_image():
    model = pooled(0.3)
    with pytest.raises(ExportError, match=r"differs from the model by 0\.001 in a logit of image 0, and 0\.0001 is al"):
        compare(model, lambda x: model(x) + 1e-3, grey(0.5, 0.6), batch_size=8)


def test_a_large_difference_is_an_error_even_on_a_threshold():
    model = pooled(0.3)
    x = grey(0.3 * (1 - 1e-7))
    assert on_threshold(model, x)
    with pytest.raises(ExportError, match="of image 0"):
        compare(model, lambda x: model(x) + 0.5, x, batch_size=8)


def test_nan_logits_are_a_difference():
    model = pooled(0.3)
    with pytest.raises(ExportError, match="differs from the model by inf"):
        compare(model, lambda x: model(x) * torch.nan, grey(0.5), batch_size=8)


def test_another_number_of_classes_is_an_error():
    model = pooled(0.3)
    with pytest.raises(ExportError, match=r"gives \(1, 2\), the model \(1, 3\)"):
        compare(model, lambda x: model(x)[:, :2], grey(0.5), batch_size=8)


def test_only_a_mask_that_jumps_has_images_on_its_threshold():
    x = grey(0.3 * (1 - 1e-7))
    assert on_threshold(pooled(0.3), x)
    assert not on_threshold(pooled(0.3), grey(0.31))
    assert not on_threshold(pooled(0.3, "piecewise:d=0.5"), x)
