"""The state of an attack on a batch: skipped images, branches, the strongest points, and clean logits from outside."""

import pytest
import torch

from lipforge.attacks import APGD, PGD, Cascade, Prepared, Square, fast, margin
from lipforge.attacks.queries import is_misclassified
from lipforge.attacks.state import AttackState
from lipforge.errors import InputError
from lipforge.types import Threat
from tests.attacks.oracles import Counted, small_images, small_net

THREAT = Threat("linf", 1e-4)  # nothing is broken


def test_the_smallest_margin_is_the_models_where_it_overrules_the_folded_copy():
    model = small_net()
    x, y = small_images(model, 6)
    result = PGD(steps=2).run(Prepared(model, lambda images: -model(images)), x, y, threat=Threat("linf", 1e-4))
    assert not result.broken.any()
    assert (result.margin > 0).all()


def test_skipped_images_cost_nothing():
    model = small_net()
    x, y = small_images(model, 6)
    state = AttackState(model, x, y, threat=THREAT, seed=0, sample_ids=torch.arange(6))
    state.clean_logits()
    with state.only(torch.tensor([1, 4])):
        APGD(steps=3).attack(state)
    assert state.forwards.tolist() == [1, 5, 1, 1, 5, 1]
    assert state.robust().tolist() == [0, 1, 2, 3, 4, 5]


def test_a_branch_brings_back_what_it_found_and_what_it_cost():
    model = small_net()
    x, y = small_images(model, 30)
    state = AttackState(model, x, y, threat=Threat("linf", 0.015), seed=0, sample_ids=torch.arange(30))
    state.clean_logits()
    at = torch.tensor([3, 7, 8, 20]).repeat(2)
    branch = state.branch(at)
    PGD(steps=4, loss="margin").attack(branch)
    state.merge(branch, at)
    assert 0 < state.broken.sum() < 4
    assert torch.equal(state.broken, is_misclassified(model, state.images, y))
    others = torch.ones(30, dtype=torch.bool).index_fill(0, at, False)
    assert state.forwards[others].tolist() == [1] * 26
    assert int(state.forwards.sum()) == 30 + int(branch.forwards.sum())
    assert int(state.backwards.sum()) == int(branch.backwards.sum())
    assert state.margin[3] == branch.margin[[0, 4]].min()
    # Another batch size may round differently.
    torch.testing.assert_close(margin(model(state.images), y)[at[:4]], state.margin[at[:4]])


def test_the_image_of_a_robust_one_is_the_strongest_point_of_the_whole_cascade():
    model = small_net()
    x, y = small_images(model, 20)
    attack = Cascade((APGD(steps=10, loss="margin"), PGD(steps=1), Square(queries=2)))
    result = attack.run(model, x, y, threat=Threat("linf", 0.004))
    assert 5 < (~result.broken).sum() < 20
    found = margin(model(result.images), y)
    torch.testing.assert_close(found[~result.broken], result.margin[~result.broken])
    alone = APGD(steps=10, loss="margin").run(model, x, y, threat=Threat("linf", 0.004))
    assert (found <= margin(model(alone.images), y) + 1e-6)[~result.broken].all()


def test_the_model_itself_is_shown_the_strongest_point_of_every_robust_image():
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
    assert torch.equal(searched.broken, is_misclassified(model, searched.images, y))
    assert searched.broken.sum() > without.broken.sum()
    assert searched.stages[-1].robust == int((~searched.broken).sum())
    assert [stage.attack for stage in searched.stages] == [stage.attack for stage in without.stages]
    assert sum(stage.forwards for stage in searched.stages) == int(searched.forwards.sum())


@pytest.mark.parametrize("attack", [PGD(steps=4), Square(queries=20), fast()], ids=lambda attack: attack.name)
def test_clean_logits_that_are_given_are_not_computed_again_and_change_nothing_else(attack):
    net = small_net()
    x, y = small_images(net, 30)
    y[:4] = (y[:4] + 1) % 4
    results, threat = [], Threat("linf", 0.015)
    for given in (None, net(x)):
        counted = Counted(net)
        results.append(attack.run(counted, x, y, threat=threat, clean_logits=given))
        assert counted.images == int(results[-1].forwards.sum())
    computed, known = results
    assert torch.equal(computed.images, known.images)
    assert torch.equal(computed.margin, known.margin)
    assert computed.outcome == known.outcome
    assert known.outcome[:4] == ("misclassified",) * 4
    assert torch.equal(computed.forwards - 1, known.forwards)
    assert [stage.robust for stage in computed.stages] == [stage.robust for stage in known.stages]


def test_clean_logits_that_are_not_one_row_per_image_are_refused():
    net = small_net()
    x, y = small_images(net)
    with pytest.raises(InputError, match=r"clean_logits must be \(N, K\), one row per image, got \(3, 4\)"):
        PGD().run(net, x, y, threat=THREAT, clean_logits=net(x)[:3])
