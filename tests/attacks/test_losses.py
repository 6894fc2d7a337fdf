"""The losses against their definitions, spelled with plain Python."""

import math

import pytest
import torch

from lipforge.attacks.losses import cross_entropy, dlr, find_loss, margin
from lipforge.errors import InputError

LOGITS = torch.tensor([[2.0, -1.0, 0.5, 1.5], [0.0, 3.0, 1.0, -2.0], [1.0, 1.2, 4.0, 0.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 2, 2])


def _plain(kind, row, label):
    others = [value for index, value in enumerate(row) if index != label]
    gap = max(others) - row[label]
    if kind is cross_entropy:
        return math.log(sum(math.exp(value) for value in row)) - row[label]
    ranked = sorted(row, reverse=True)
    return gap if kind is margin else gap / (ranked[0] - ranked[2] + 1e-12)


@pytest.mark.parametrize("loss", [cross_entropy, margin, dlr])
def test_a_loss_follows_its_definition(loss):
    expected = [_plain(loss, row, label) for row, label in zip(LOGITS.tolist(), LABELS.tolist(), strict=True)]
    assert loss(LOGITS, LABELS).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("loss", [cross_entropy, margin, dlr])
def test_a_loss_has_the_right_gradient(loss):
    logits = LOGITS.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: loss(z, LABELS), (logits,))


def test_dlr_does_not_change_when_logits_are_scaled_and_shifted():
    torch.testing.assert_close(dlr(1000 * LOGITS + 7, LABELS), dlr(LOGITS, LABELS))


def test_dlr_on_two_classes_is_refused():
    with pytest.raises(InputError, match="at least 3 classes"):
        dlr(LOGITS[:, :2], torch.tensor([0, 1, 0]))


def test_an_unknown_loss_is_refused():
    with pytest.raises(InputError, match="one of ce, margin, dlr, got 'hinge'"):
        find_loss("hinge")
