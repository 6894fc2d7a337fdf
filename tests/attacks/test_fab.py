"""FAB against the closed-form distance to a boundary."""

import pytest

from lipforge.attacks import FAB
from lipforge.errors import InputError
from lipforge.types import Threat
from tests.attacks.oracles import linear_classes, small_images, small_net


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize(("classes", "targets"), [(2, 9), (5, 9), (5, 0)])
def test_fab_finds_the_exact_distance_to_the_nearest_boundary(norm, classes, targets):
    model, x, y = linear_classes(classes, count=8)
    attack = FAB(steps=3, targets=targets, eta=1 + 1e-7)
    for row, distance in enumerate(model.distance(x, y, norm).tolist()):
        one, label = x[row : row + 1], y[row : row + 1]
        above, below = (
            attack.run(model, one, label, threat=Threat(norm, distance * share)).broken.item()
            for share in (1 + 1e-6, 1 - 1e-6)
        )
        assert above, row
        assert not below, row


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("targets", [0, 9])
def test_fab_comes_back_from_its_overshoot_to_within_one_percent(norm, targets):
    model, x, y = linear_classes(5, count=8)
    for row, distance in enumerate(model.distance(x, y, norm).tolist()):
        # The first jump ends at 1.05 times the distance, outside; pulling back and jumping once more gets inside.
        attack, threat = FAB(steps=2, targets=targets, eta=1.05), Threat(norm, 1.01 * distance)
        result = attack.run(model, x[row : row + 1], y[row : row + 1], threat=threat)
        assert result.broken.item(), row
        assert result.forwards.item() > 3, row


def test_fab_finds_the_boundary_of_a_net_where_its_radius_allows():
    model = small_net()
    x, y = small_images(model, 60)
    counts = [
        int(FAB(steps=20).run(model, x, y, threat=Threat("linf", eps)).broken.sum()) for eps in (0.002, 0.005, 0.02)
    ]
    assert counts == sorted(counts)
    assert 0 < counts[1] < 60


@pytest.mark.parametrize(("targets", "walks", "backwards"), [(9, 3, 1), (2, 2, 1), (0, 1, 3)])
def test_a_robust_image_costs_one_forward_per_step(targets, walks, backwards):
    model = small_net(classes=4)
    x, y = small_images(model)
    result = FAB(steps=6, targets=targets).run(model, x, y, threat=Threat("linf", 1e-7))
    # Outside eps after the last step, no image needs a last look.
    assert result.forwards.tolist() == [1 + 6 * walks] * len(x)
    assert result.backwards.tolist() == [6 * walks * backwards] * len(x)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"restarts": 0}, "restarts must be at least 1, got 0"),
        ({"targets": -1}, "targets must be at least 0, got -1"),
        ({"eta": 0.9}, "eta be at least 1"),
        ({"beta": 1.0}, "beta lie in"),
        ({"alpha_max": 1.0}, "alpha_max must lie in"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        FAB(**settings)
