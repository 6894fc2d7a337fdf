import pytest
import torch

from lipforge.attacks import PGD
from lipforge.audit import Plan
from lipforge.audit.measure import measure, radii
from lipforge.audit.subjects import pair_of
from lipforge.errors import InputError, ModelError
from lipforge.types import Threat

PLAN = Plan(plain=PGD(), adaptive=PGD(), longer=PGD(), check_queries=5)


def line(x):
    """Two logits whose difference is the mean of the image minus 1/2: an image falls if eps exceeds its level."""
    level = x.flatten(1).mean(dim=1) - 0.5
    return torch.stack([level, -level], dim=1)


def flat(x):
    """The same decisions with a gradient of 0."""
    return line(x.detach()) + 0 * x.flatten(1).sum(dim=1, keepdim=True)


def measured(classifier, threat):
    x = torch.stack([torch.full((1, 4, 4), 0.5 + level) for level in (0.05, 0.15, 0.45, -0.1)])
    y = torch.zeros(4, dtype=torch.int64)
    return measure(pair_of(line, classifier), x, y, torch.arange(4), threat=threat, plan=PLAN)


def test_what_stands_on_a_line_is_what_lies_further_than_eps():
    found = measured(line, Threat("linf", 0.1))
    expected = [False, True, True, False]
    assert (found["fgsm"], found["pgd"], found["cw"]) == (expected, expected, expected)
    assert found["cw_of_base"] == expected
    assert [count for _, count in found["sweep"]] == [2, 1, 1]
    assert [radius for radius, _ in found["sweep"]] == pytest.approx([0.1, 0.2, 96 / 255])


def test_on_a_line_the_gradient_beats_every_random_direction_and_is_never_zero():
    found = measured(line, Threat("linf", 0.1))
    assert found["directions"] == [True] * 4
    assert found["zero_gradients"] == [0, 0, 64]


def test_a_gradient_of_zero_is_counted_and_beats_nothing():
    found = measured(flat, Threat("linf", 0.1))
    assert found["zero_gradients"] == [4, 64, 64]
    assert found["directions"] != [True] * 4
    assert found["fgsm"] == [True, True, True, False]


@pytest.mark.parametrize(
    ("classifier", "label", "error"), [(line, 7, InputError), (lambda x: line(x) * torch.nan, 0, ModelError)]
)
def test_unknown_labels_and_nan_are_errors_in_the_checklist_too(classifier, label, error):
    x, threat = torch.full((1, 1, 4, 4), 0.6), Threat("linf", 0.1)
    with pytest.raises(error):
        measure(pair_of(line, classifier), x, torch.tensor([label]), torch.arange(1), threat=threat, plan=PLAN)


def test_two_classifiers_that_are_not_one_forged_model_have_no_weight_variant():
    assert measured(line, Threat("linf", 0.1))["weight"] is None


@pytest.mark.parametrize(
    ("threat", "expected"),
    [
        (Threat("linf", "2/255"), [2, 4, 8, 16, 32, 64, 96]),
        (Threat("linf", "96/255"), [96]),
        (Threat("linf", "100/255"), [100]),
    ],
)
def test_the_sweep_doubles_up_to_96_of_255(threat, expected):
    assert [255 * radius for radius in radii(threat)] == pytest.approx(expected)


def test_the_l2_sweep_ends_at_twelve_times_eps():
    assert radii(Threat("l2", 0.5)) == [0.5, 1.0, 2.0, 4.0, 6.0]
