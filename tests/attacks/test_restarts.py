"""`Restarts`: which images get another round, what the rounds cost, and that rounds side by side change nothing."""

import pytest
import torch

from lipforge.attacks import Restarts, margin
from lipforge.attacks.apgd import Schedule, climb
from lipforge.attacks.cascades import _parts
from lipforge.attacks.losses import targeted_margin_loss
from lipforge.attacks.state import AttackState, toward
from lipforge.types import Threat
from tests.attacks.oracles import small_images, small_net

THREAT = Threat("linf", 1e-4)  # nothing is broken


def _run(attack, count=10):
    model = small_net(classes=4)
    x, y = small_images(model, count)
    return attack.run(model, x, y, threat=THREAT)


def test_an_image_far_from_the_boundary_gets_no_round_and_is_reported_as_early_stopped():
    result = _run(Restarts(steps=5, rounds=4, near=0.5))
    # At this eps every image keeps nearly all of its clean margin: the clean image is all that was looked at.
    assert result.forwards.tolist() == [1] * 10
    assert result.early_stopped.all()


def test_every_round_asks_for_images_twice_as_near():
    # b is close to 1 for all images: below 7 / 2^(r - 1) in the rounds 1, 2 and 3, and not in round 4.
    result = _run(Restarts(steps=5, rounds=5, gain=100.0, near=7.0))
    # The clean image, the strongest point and its runner-up, and 6 points in 3 rounds
    assert result.forwards.tolist() == [1 + 1 + 3 * 6] * 10
    assert result.backwards.tolist() == [3 * 5] * 10
    assert result.early_stopped.all()


def test_images_that_keep_gaining_get_another_round_and_images_near_enough_get_every_round():
    # The first round gains something from the clean image, however little; the second finds nothing new to speak of.
    gaining = _run(Restarts(steps=5, rounds=4, gain=1e-5, near=1.5))
    assert (gaining.forwards >= 1 + 2 * (1 + 6)).all()
    near = _run(Restarts(steps=5, rounds=4, gain=100.0, near=100.0))
    assert near.forwards.tolist() == [1 + 1 + 4 * 6] * 10
    assert not near.early_stopped.any()


def _one_after_the_other(rounds, model, x, y, threat):
    """The margin left of one image and the rounds it got, by the rule as the page words it, one round at a time."""
    state = AttackState(model, x, y, threat=threat, seed=0, sample_ids=torch.tensor([0]))
    size = float(margin(state.clean_logits(), y))
    left, gained, earned = size, 0.0, 0
    for number in range(rounds.rounds):
        if left / size >= rounds.near / 2**number and gained < rounds.gain:
            return left, number
        if number >= earned:  # rounds that are earned together are toward one class
            logits = model(state.images).detach().scatter(1, y[:, None], -torch.inf)
            goal = toward(state, targeted_margin_loss, logits.argmax(dim=1))
            earned = max(number + 1, sum(left / size < rounds.near / 2**later for later in range(rounds.rounds)))
        climb(state, goal, Schedule(rounds.steps, 0.75), stream="rounds", counter=number)
        gained, left = (left - float(state.margin)) / size, float(state.margin)
    return left, rounds.rounds


@pytest.mark.parametrize(("near", "gain"), [(3.0, 100.0), (1.1, 0.02), (1.5, 0.005)])
def test_rounds_side_by_side_find_what_rounds_one_after_the_other_find(near, gain):
    model = small_net().double()
    x, y = small_images(small_net(), 40)
    x, threat, rounds = x.double(), Threat("linf", 0.004), Restarts(steps=6, rounds=4, near=near, gain=gain)
    result = rounds.run(model, x, y, threat=threat, sample_ids=torch.zeros(40, dtype=torch.int64))
    each = [_one_after_the_other(rounds, model, x[i : i + 1], y[i : i + 1], threat) for i in range(40)]
    robust = ~result.broken
    assert robust.sum() >= 10
    assert len({count for _, count in each}) >= 3  # or the rule was not put to the test
    expected, counts = torch.tensor([left for left, _ in each]).double(), torch.tensor([count for _, count in each])
    assert torch.equal(expected <= 0, result.broken)
    torch.testing.assert_close(result.margin[robust], expected[robust], rtol=0, atol=1e-6)
    assert result.backwards[robust].tolist() == (counts * 6)[robust].tolist()
    assert result.early_stopped[robust].tolist() == (counts < 4)[robust].tolist()


def test_the_runs_on_an_image_that_is_broken_end_together():
    model = small_net()
    x, y = small_images(model, 30)
    result = Restarts(steps=50, rounds=4, near=100.0).run(model, x, y, threat=Threat("linf", 0.012))
    spent = result.backwards[result.broken]
    assert 5 < len(spent) < 30
    assert (spent % 4 == 0).all()  # all four runs ended after the same step
    assert 4 < spent.max() < 4 * 50


def test_an_image_gets_the_same_rounds_alone_and_among_many():
    model = small_net().double()
    x, y = small_images(small_net(), 24)
    x, threat, rounds = x.double(), Threat("linf", 0.004), Restarts(steps=6, rounds=4, near=2.0)
    together = rounds.run(model, x, y, threat=threat)
    for i in (0, 7, 23):
        alone = rounds.run(model, x[i : i + 1], y[i : i + 1], threat=threat, sample_ids=torch.tensor([i]))
        assert int(alone.backwards) == int(together.backwards[i])
        torch.testing.assert_close(alone.margin, together.margin[i : i + 1])


def test_rounds_are_parted_so_that_a_batch_stays_a_batch():
    assert [part.tolist() for part in _parts(torch.tensor([4, 4, 1, 3, 2]), 5)] == [[0], [1, 2], [3, 4]]
    assert [part.tolist() for part in _parts(torch.tensor([2, 4, 2]), 4)] == [[0], [1], [2]]
    assert [part.tolist() for part in _parts(torch.tensor([4, 1]), 1)] == [[0], [1]]
    model = small_net()
    x, y = small_images(model, 24)
    sizes = []

    def watched(images):
        sizes.append(len(images))
        return model(images)

    Restarts(steps=3, rounds=4, near=100.0).run(watched, x, y, threat=THREAT)
    assert max(sizes) == 24  # four runs for each image: six images at a time
