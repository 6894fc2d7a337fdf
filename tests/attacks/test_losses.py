"""The losses against their definitions, spelled with plain Python, and the order of targets against closed forms."""

import math

import pytest
import torch

from lipforge.attacks.losses import (
    cross_entropy,
    dlr,
    find_loss,
    find_targeted_loss,
    margin,
    margin_loss,
    targeted_dlr,
    targeted_margin_loss,
    targets_by_distance,
    targets_by_rank,
)
from lipforge.attacks.state import AttackState
from lipforge.errors import InputError
from lipforge.types import Threat
from tests.attacks.oracles import linear_classes

LOGITS = torch.tensor([[2.0, -1.0, 0.5, 1.5], [0.0, 3.0, 1.0, -2.0], [1.0, 1.2, 4.0, 0.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 2, 2])


def _plain(kind, row, label):
    others = [value for index, value in enumerate(row) if index != label]
    margin = row[label] - max(others)
    if kind is cross_entropy:
        return math.log(sum(math.exp(value) for value in row)) - row[label]
    ranked = sorted(row, reverse=True)
    return -margin if kind is margin_loss else -margin / (ranked[0] - ranked[2] + 1e-12)


@pytest.mark.parametrize("loss", [cross_entropy, margin_loss, dlr])
def test_a_loss_follows_its_definition(loss):
    expected = [_plain(loss, row, label) for row, label in zip(LOGITS.tolist(), LABELS.tolist(), strict=True)]
    assert loss(LOGITS, LABELS).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("loss", [cross_entropy, margin_loss, dlr])
def test_a_loss_has_the_right_gradient(loss):
    logits = LOGITS.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: loss(z, LABELS), (logits,))


def test_the_margin_is_positive_where_the_model_is_right():
    assert margin(LOGITS, LABELS).tolist() == pytest.approx([0.5, -2.0, 2.8])
    assert torch.equal(margin_loss(LOGITS, LABELS), -margin(LOGITS, LABELS))


def test_dlr_does_not_change_when_logits_are_scaled_and_shifted():
    torch.testing.assert_close(dlr(1000 * LOGITS + 7, LABELS), dlr(LOGITS, LABELS))


def test_dlr_on_two_classes_is_refused():
    with pytest.raises(InputError, match="at least 3 classes"):
        dlr(LOGITS[:, :2], torch.tensor([0, 1, 0]))


def test_an_unknown_loss_is_refused():
    with pytest.raises(InputError, match="one of ce, margin, dlr, got 'hinge'"):
        find_loss("hinge")


TARGETS = torch.tensor([3, 1, 0])


@pytest.mark.parametrize("loss", [targeted_margin_loss, targeted_dlr])
def test_a_targeted_loss_follows_its_definition(loss):
    expected = []
    for row, label, target in zip(LOGITS.tolist(), LABELS.tolist(), TARGETS.tolist(), strict=True):
        ranked = sorted(row, reverse=True)
        scale = ranked[0] - (ranked[2] + ranked[3]) / 2 + 1e-12 if loss is targeted_dlr else 1.0
        expected.append((row[target] - row[label]) / scale)
    assert loss(LOGITS, LABELS, TARGETS).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("loss", [targeted_margin_loss, targeted_dlr])
def test_a_targeted_loss_has_the_right_gradient(loss):
    logits = LOGITS.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: loss(z, LABELS, TARGETS), (logits,))


def test_the_targeted_dlr_on_three_classes_is_refused():
    with pytest.raises(InputError, match="at least 4 classes"):
        targeted_dlr(LOGITS[:, :3], torch.tensor([0, 1, 0]), torch.tensor([1, 2, 1]))


def test_an_unknown_targeted_loss_is_refused():
    with pytest.raises(InputError, match="one of margin, dlr, got 'ce'"):
        find_targeted_loss("ce")


def _state(classes, norm="linf"):
    model, x, y = linear_classes(classes, count=30)
    return model, AttackState(model, x, y, threat=Threat(norm, 0.01), seed=0, sample_ids=torch.arange(30))


def test_targets_by_rank_are_the_runners_up_in_order():
    model, state = _state(5)
    targets = targets_by_rank(state, 3)
    for row, logits in enumerate(model(state.x).tolist()):
        ranked = sorted(range(5), key=lambda label: -logits[label])
        assert [int(target[row]) for target in targets] == ranked[1:4]


def test_there_are_never_more_targets_than_other_classes():
    _, state = _state(3)
    assert len(targets_by_rank(state, 9)) == 2
    assert len(targets_by_distance(state, 9)) == 2


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_targets_by_distance_are_exact_on_a_linear_model(norm):
    model, state = _state(6, norm)
    targets = torch.stack(targets_by_distance(state, 5), dim=1)
    expected = model.distances(state.x, state.y, norm).argsort(dim=1)[:, :5]
    assert torch.equal(targets, expected)
    assert not torch.equal(targets, torch.stack(targets_by_rank(state, 5), dim=1))


def test_the_distances_are_found_once():
    _, state = _state(6)
    targets_by_distance(state, 2)
    targets_by_distance(state, 4)
    assert state.forwards.tolist() == [2] * 30  # the clean logits, and the slopes
    assert state.backwards.tolist() == [5] * 30
