"""The order of targets against closed forms."""

import pytest
import torch

from lipforge.attacks.targets import targets_by_distance, targets_by_rank
from lipforge.attacks.trial import Trial
from lipforge.types import Threat
from tests.attacks.oracles import linear_classes


def _trial(classes, norm="linf"):
    model, x, y = linear_classes(classes, count=30)
    return model, Trial(model, x, y, threat=Threat(norm, 0.01), seed=0, sample_ids=torch.arange(30))


def test_targets_by_rank_are_the_runners_up_in_order():
    model, trial = _trial(5)
    targets = targets_by_rank(trial, 3)
    for row, logits in enumerate(model(trial.x).tolist()):
        ranked = sorted(range(5), key=lambda label: -logits[label])
        assert [int(target[row]) for target in targets] == ranked[1:4]


def test_there_are_never_more_targets_than_other_classes():
    _, trial = _trial(3)
    assert len(targets_by_rank(trial, 9)) == 2
    assert len(targets_by_distance(trial, 9)) == 2


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_targets_by_distance_are_exact_on_a_linear_model(norm):
    model, trial = _trial(6, norm)
    targets = torch.stack(targets_by_distance(trial, 5), dim=1)
    expected = model.distances(trial.x, trial.y, norm).argsort(dim=1)[:, :5]
    assert torch.equal(targets, expected)
    assert not torch.equal(targets, torch.stack(targets_by_rank(trial, 5), dim=1))


def test_the_distances_are_found_once():
    _, trial = _trial(6)
    targets_by_distance(trial, 2)
    targets_by_distance(trial, 4)
    assert trial.forwards.tolist() == [2] * 30  # the clean logits, and the slopes
    assert trial.backwards.tolist() == [5] * 30
