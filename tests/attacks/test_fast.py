"""The stopping rule of the rounds, and the escalation of suspicious images."""

import pytest
import torch

from lipforge.attacks import APGD, PGD, Cascade, Escalate, Prepared, Rounds, Square, autoattack, margin
from lipforge.attacks.apgd import Schedule, climb
from lipforge.attacks.base import is_fooled
from lipforge.attacks.fast import _parts, settle_disputes
from lipforge.attacks.losses import targeted_margin
from lipforge.attacks.targets import targets_by_distance
from lipforge.attacks.trial import Trial, toward
from lipforge.data import load_data
from lipforge.errors import InputError
from lipforge.models import load_model
from lipforge.types import Threat
from tests.attacks.oracles import small_images, small_net
from tests.attacks.test_checks import Rounding

THREAT = Threat("linf", 1e-4)  # nobody is fooled


def _run(attack, count=10):
    model = small_net(classes=4)
    x, y = small_images(model, count)
    return attack.run(model, x, y, threat=THREAT)


def test_an_image_far_from_the_boundary_gets_no_round_and_is_reported_as_given_up():
    result = _run(Rounds(steps=5, rounds=4, near=0.5))
    # At this eps every image keeps nearly all of its clean margin: the clean image is all that was looked at.
    assert result.forwards.tolist() == [1] * 10
    assert result.given_up.all()


def test_every_round_asks_for_images_twice_as_near():
    # b is close to 1 for all images: below 7 / 2^(r - 1) in the rounds 1, 2 and 3, and not in round 4.
    result = _run(Rounds(steps=5, targets=2, rounds=5, gain=100.0, near=7.0))
    # The clean image, the slope toward the 3 candidates, and 6 points toward each of 2 targets in 3 rounds
    assert result.forwards.tolist() == [1 + 1 + 3 * 2 * 6] * 10
    assert result.backwards.tolist() == [3 + 3 * 2 * 5] * 10
    assert result.given_up.all()


def test_images_that_keep_gaining_go_on_and_images_near_enough_get_every_round():
    # The first round gains something from the clean image, however little; the second finds nothing new to speak of.
    gaining = _run(Rounds(steps=5, targets=2, rounds=4, gain=1e-5, near=1.5))
    assert (gaining.forwards >= 1 + 1 + 2 * 2 * 6).all()
    near = _run(Rounds(steps=5, targets=2, rounds=4, gain=100.0, near=100.0))
    assert near.forwards.tolist() == [1 + 1 + 4 * 2 * 6] * 10
    assert not near.given_up.any()


def _one_after_the_other(rounds, model, x, y, threat):
    """The margin left of one image and the rounds it got, by the rule as the page words it, one round at a time."""
    trial = Trial(model, x, y, threat=threat, seed=0, sample_ids=torch.tensor([0]))
    size = float(-margin(trial.clean_logits(), y))
    targets = targets_by_distance(trial, rounds.targets)
    left, gained = size, 0.0
    for number in range(rounds.rounds):
        if left / size >= rounds.near / 2**number and gained < rounds.gain:
            return left, number
        for target in targets:
            climb(
                trial,
                toward(trial, targeted_margin, target),
                Schedule(rounds.steps, 0.75),
                stream="rounds",
                counter=number,
            )
        gained, left = (left + float(trial.closest)) / size, -float(trial.closest)
    return left, rounds.rounds


@pytest.mark.parametrize(("near", "gain"), [(3.0, 100.0), (1.1, 0.02), (1.5, 0.005)])
def test_rounds_side_by_side_find_what_rounds_one_after_the_other_find(near, gain):
    model = small_net().double()
    x, y = small_images(small_net(), 40)
    x, threat, rounds = x.double(), Threat("linf", 0.004), Rounds(steps=6, rounds=4, near=near, gain=gain)
    result = rounds.run(model, x, y, threat=threat, sample_ids=torch.zeros(40, dtype=torch.int64))
    each = [_one_after_the_other(rounds, model, x[i : i + 1], y[i : i + 1], threat) for i in range(40)]
    stands = ~result.fooled
    assert stands.sum() >= 10
    assert len({count for _, count in each}) >= 3  # or the rule was not put to the test
    expected, counts = torch.tensor([left for left, _ in each]).double(), torch.tensor([count for _, count in each])
    assert torch.equal(expected <= 0, result.fooled)
    torch.testing.assert_close(-result.closest[stands], expected[stands], rtol=0, atol=1e-6)
    assert result.backwards[stands].tolist() == (torch.where(counts > 0, 3, 0) + counts * 2 * 6)[stands].tolist()
    assert result.given_up[stands].tolist() == (counts < 4)[stands].tolist()


def test_the_other_runs_on_an_image_that_falls_end_with_it():
    model = small_net()
    x, y = small_images(model, 30)
    result = Rounds(steps=50, rounds=4, near=100.0).run(model, x, y, threat=Threat("linf", 0.012))
    spent = result.backwards[result.fooled] - 3  # the slopes toward the candidates
    assert 5 < len(spent) < 30
    assert (spent % 8 == 0).all()  # all eight runs ended after the same step
    assert 8 < spent.max() < 8 * 50


def test_an_image_gets_the_same_rounds_alone_and_among_many():
    model = small_net().double()
    x, y = small_images(small_net(), 24)
    x, threat, rounds = x.double(), Threat("linf", 0.004), Rounds(steps=6, rounds=4, near=2.0)
    together = rounds.run(model, x, y, threat=threat)
    for i in (0, 7, 23):
        alone = rounds.run(model, x[i : i + 1], y[i : i + 1], threat=threat, sample_ids=torch.tensor([i]))
        assert int(alone.backwards) == int(together.backwards[i])
        torch.testing.assert_close(alone.closest, together.closest[i : i + 1])


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

    Rounds(steps=3, rounds=4, near=100.0).run(watched, x, y, threat=THREAT)
    assert max(sizes) == 24  # eight runs for each image: three images at a time


def test_an_image_far_from_the_boundary_costs_what_the_page_says():
    # float64: at this eps a margin changes by little more than float32 rounds, and the probe compares margins.
    model = small_net(classes=10).double()
    x, y = small_images(small_net(classes=10), 40)
    result = autoattack("fast", prepare=False).run(model, x.double(), y, threat=Threat("linf", 1e-5))
    assert result.given_up.all()
    assert result.forwards[32:].tolist() == [86] * 8
    assert result.backwards[32:].tolist() == [69] * 8
    assert result.forwards[:32].tolist() == [86 + 2] * 32  # the checks of the model


def test_an_image_that_is_fooled_is_not_given_up():
    model = small_net()
    x, y = small_images(model, 40)
    result = Rounds(steps=10, near=10.0).run(model, x, y, threat=Threat("linf", 0.01))
    assert 5 < result.fooled.sum() < 40
    assert not (result.given_up & result.fooled).any()


def test_an_honest_model_is_probed_and_not_escalated():
    result = _run(Cascade((APGD(steps=5, loss="margin"), Escalate(queries=20))))
    assert [stage.attack for stage in result.stages] == ["clean", "apgd:steps=5,loss=margin", "probe"]
    assert result.notes == ()
    assert result.forwards.tolist() == [1 + 6 + 21] * 10


@pytest.mark.slow
def test_images_without_gradients_are_escalated_to_the_standard_cascade():
    model = Rounding().eval()
    x, _ = small_images(small_net(), 2)
    y = model(x).argmax(dim=1)
    result = Cascade((APGD(steps=5, loss="margin"), Escalate(queries=2))).run(model, x, y, threat=Threat("linf", 0.005))
    names = [stage.attack for stage in result.stages]
    assert names[:4] == ["clean", "apgd:steps=5,loss=margin", "probe", "apgd"]
    assert names[-1] == "square"
    assert any("looked masked" in note for note in result.notes)


def test_what_fools_only_the_stand_in_is_attacked_on_the_model_itself_and_noted():
    model = small_net()
    x, y = small_images(model, 6)
    turned = Prepared(model, lambda images: -model(images))  # always fooled, and leads away from where the model is
    assert not APGD(steps=20).run(turned, x, y, threat=Threat("linf", 0.1)).fooled.any()
    result = autoattack("fast").run(turned, x, y, threat=Threat("linf", 0.1))
    assert result.fooled.all()
    # Some of the others fall by chance, to a random point that the stand-in was asked about.
    (note,) = (note for note in result.notes if "fooled only the model's stand-in" in note)
    assert int(note.split()[0]) == result.outcome.count("apgd") > 2


@pytest.mark.slow
def test_a_real_model_behind_a_quantiser_is_escalated_and_broken_without_gradients():
    robust = load_model("cifar10-resnet")
    x, y = load_data("cifar10-sample").batch(range(8))
    right = (robust(x).argmax(dim=1) == y).nonzero().squeeze(1)[:2]
    x, y = x[right], y[right]

    def quantised(images):
        return robust((images * 31).round() / 31)  # a gradient of 0 wherever there is one

    result = autoattack("fast").run(quantised, x, y, threat=Threat("linf", "16/255"))
    assert any("looked masked and went through the standard cascade" in note for note in result.notes)
    assert result.stages[-1].attack == "square"
    assert result.fooled.all()


def test_an_attack_on_disputed_images_leaves_the_others_and_the_stand_in_alone():
    model = small_net()
    x, y = small_images(model, 6)
    trial = Trial(Prepared(model, lambda images: 2 * model(images)), x, y, threat=THREAT, seed=0, sample_ids=y)
    trial.clean_logits()
    quick, trial.disputed[2] = trial.quick, True
    assert settle_disputes(trial, PGD(steps=3)).tolist() == [False, False, True, False, False, False]
    assert trial.forwards.tolist() == [1, 1, 1 + 4, 1, 1, 1]
    assert trial.quick is quick
    assert not settle_disputes(trial, PGD(steps=3)).any()


def test_the_closest_margin_is_the_models_where_it_overrules_the_stand_in():
    model = small_net()
    x, y = small_images(model, 6)
    result = PGD(steps=2).run(Prepared(model, lambda images: -model(images)), x, y, threat=Threat("linf", 1e-4))
    assert not result.fooled.any()
    assert (result.closest < 0).all()


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (Rounds, {"steps": 0}, "at least 1"),
        (Rounds, {"rounds": 0}, "at least 1"),
        (Rounds, {"gain": 0.0}, "gain must be above 0"),
        (Escalate, {"queries": 0}, "queries and restarts"),
    ],
)
def test_settings_that_make_no_sense_are_refused(kind, settings, message):
    with pytest.raises(InputError, match=message):
        kind(**settings)


def test_resting_images_cost_nothing():
    model = small_net()
    x, y = small_images(model, 6)
    trial = Trial(model, x, y, threat=THREAT, seed=0, sample_ids=torch.arange(6))
    trial.clean_logits()
    with trial.only(torch.tensor([1, 4])):
        APGD(steps=3).attack(trial)
    assert trial.forwards.tolist() == [1, 5, 1, 1, 5, 1]
    assert trial.standing().tolist() == [0, 1, 2, 3, 4, 5]


def test_a_branch_brings_back_what_it_found_and_what_it_cost():
    model = small_net()
    x, y = small_images(model, 30)
    trial = Trial(model, x, y, threat=Threat("linf", 0.015), seed=0, sample_ids=torch.arange(30))
    trial.clean_logits()
    at = torch.tensor([3, 7, 8, 20]).repeat(2)
    branch = trial.branch(at)
    PGD(steps=4, loss="margin").attack(branch)
    trial.merge(branch, at)
    assert 0 < trial.fooled.sum() < 4
    assert torch.equal(trial.fooled, is_fooled(model, trial.images, y))
    others = torch.ones(30, dtype=torch.bool).index_fill(0, at, False)
    assert trial.forwards[others].tolist() == [1] * 26
    assert int(trial.forwards.sum()) == 30 + int(branch.forwards.sum())
    assert int(trial.backwards.sum()) == int(branch.backwards.sum())
    assert trial.closest[3] == branch.closest[[0, 4]].max()
    assert torch.equal(margin(model(trial.images), y)[at[:4]], trial.closest[at[:4]])


def test_the_image_of_one_that_stands_is_the_strongest_point_of_the_whole_cascade():
    model = small_net()
    x, y = small_images(model, 20)
    attack = Cascade((APGD(steps=10, loss="margin"), PGD(steps=1), Square(queries=2)))
    result = attack.run(model, x, y, threat=Threat("linf", 0.004))
    assert 5 < (~result.fooled).sum() < 20
    found = margin(model(result.images), y)
    torch.testing.assert_close(found[~result.fooled], result.closest[~result.fooled])
    alone = APGD(steps=10, loss="margin").run(model, x, y, threat=Threat("linf", 0.004))
    assert (found >= margin(model(alone.images), y) - 1e-6)[~result.fooled].all()


def test_the_model_itself_is_shown_the_strongest_point_of_what_stands():
    model = small_net()
    x, y = small_images(model, 80)
    x, y = x[y == y[0]], y[y == y[0]]

    def timid(images):  # sees their class a little too strong
        logits = model(images)
        return logits + 0.03 * torch.nn.functional.one_hot(y[0], logits.shape[1])

    threat = Threat("linf", 0.03)
    attack = Cascade((APGD(steps=10, loss="margin"),))
    without = attack.run(timid, x, y, threat=threat)
    searched = attack.run(Prepared(model, timid), x, y, threat=threat)
    assert torch.equal(searched.fooled, is_fooled(model, searched.images, y))
    assert searched.fooled.sum() > without.fooled.sum()
    assert searched.stages[-1].robust == int((~searched.fooled).sum())
    assert [stage.attack for stage in searched.stages] == [stage.attack for stage in without.stages]
    assert sum(stage.forwards for stage in searched.stages) == int(searched.forwards.sum())
