"""Folded copies in half precision: only the model itself, in the images' own precision, decides."""

import pytest
import torch
from torch import nn

from lipforge.attacks import (
    PGD,
    Prepared,
    Restarts,
    Square,
    fast,
    prepare,
)
from lipforge.attacks.queries import is_misclassified
from lipforge.errors import ModelError
from lipforge.types import Threat
from tests.attacks.oracles import small_images, small_net


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_with_half_precision_every_success_fools_the_model_in_full_precision(precision):
    model = small_net()
    x, y = small_images(model, 60)
    threat = Threat("linf", 0.015)
    half = PGD(steps=10).run(prepare(model, x, precision=precision), x, y, threat=threat)
    full = PGD(steps=10).run(model, x, y, threat=threat)
    assert half.images.dtype == torch.float32
    assert torch.equal(half.broken, is_misclassified(model, half.images, y))
    assert abs(int(half.broken.sum()) - int(full.broken.sum())) <= 3
    assert 5 < full.broken.sum() < 60


def test_half_precision_alone_would_count_an_image_that_is_not_broken():
    head = nn.Linear(3 * 4 * 4, 2, bias=False)
    model = nn.Sequential(nn.Flatten(), head).eval()
    with torch.no_grad():
        # The logits are 1 and 1.001; bfloat16 has 8 bits, so both weights become 2, and the first of equals wins.
        head.weight.copy_(torch.tensor([2.0, 2.002])[:, None] * (torch.arange(48) == 0))
        x, y = torch.full((1, 3, 4, 4), 0.5), torch.tensor([1])
        rounded = prepare(model, x, precision="bfloat16")
        assert is_misclassified(rounded.folded, x, y).all()
    result = Square(queries=3).run(rounded, x, y, threat=Threat("linf", 1e-5))
    assert result.outcome == ("robust",)


def test_a_folded_copy_without_finite_logits_is_dropped_for_the_model():
    model = small_net()
    x, y = small_images(model, 20)
    calls = []

    def overflowing(images):
        calls.append(len(images))
        return 1e7 * model(images).half()

    threat = Threat("linf", 0.01)
    result = Restarts(steps=3, near=10.0).run(Prepared(model, overflowing), x, y, threat=threat)
    assert len(calls) == 1
    assert torch.equal(result.images, Restarts(steps=3, near=10.0).run(model, x, y, threat=threat).images)
    (note,) = result.notes
    assert "the folded copy was dropped" in note.text
    assert "use bfloat16" in note.text
    assert note.kind == "folded_copy_dropped"
    with pytest.raises(ModelError, match="NaN or infinite logits for image"):
        PGD().run(overflowing, x, y, threat=threat)


def test_what_breaks_in_half_precision_only_is_searched_for_in_full_precision():
    """A copy that always says it is fooled in half precision sends all images on, which then cost what `fast` costs."""
    net = small_net()
    x, y = small_images(net, 12)

    class Fooled(nn.Module):
        def forward(self, images):
            logits = net(images)
            return -logits if torch.is_autocast_enabled("cpu") else logits

    threat, model = Threat("linf", 0.01), Fooled().eval()
    exact, half = (fast(precision=precision).run(model, x, y, threat=threat) for precision in ("float32", "bfloat16"))
    assert torch.equal(half.broken, exact.broken)
    assert 0 < exact.broken.sum() < len(x), "or nothing was put to the test"
    kinds = {note.kind for note in half.notes}
    assert "half_precision_only" in kinds
    assert "folded_copy_only" not in kinds
    assert half.forwards.max() < 5000, "the standard cascade alone would take more"
