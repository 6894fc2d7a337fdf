"""The losses against their definitions, spelled with plain Python."""

import math

import pytest
import torch

from lipforge.attacks.losses import (
    cross_entropy,
    dlr,
    find_loss,
    find_targeted_loss,
    margin,
    targeted_dlr,
    targeted_margin,
)
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


TARGETS = torch.tensor([3, 1, 0])


@pytest.mark.parametrize("loss", [targeted_margin, targeted_dlr])
def test_a_targeted_loss_follows_its_definition(loss):
    expected = []
    for row, label, target in zip(LOGITS.tolist(), LABELS.tolist(), TARGETS.tolist(), strict=True):
        ranked = sorted(row, reverse=True)
        scale = ranked[0] - (ranked[2] + ranked[3]) / 2 + 1e-12 if loss is targeted_dlr else 1.0
        expected.append((row[target] - row[label]) / scale)
    assert loss(LOGITS, LABELS, TARGETS).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("loss", [targeted_margin, targeted_dlr])
def test_a_targeted_loss_has_the_right_gradient(loss):
    logits = LOGITS.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: loss(z, LABELS, TARGETS), (logits,))


def test_the_targeted_dlr_on_three_classes_is_refused():
    with pytest.raises(InputError, match="at least 4 classes"):
        targeted_dlr(LOGITS[:, :3], torch.tensor([0, 1, 0]), torch.tensor([1, 2, 1]))


def test_an_unknown_targeted_loss_is_refused():
    with pytest.raises(InputError, match="one of margin, dlr, got 'ce'"):
        find_targeted_loss("ce")
