"""Minimum-norm attacks against the closed-form distance to a boundary."""

import pytest
import torch

from lipforge.attacks import DDN, FMN, MinimumNorm, Prepared, norms
from lipforge.attacks.queries import is_misclassified
from lipforge.errors import InputError
from lipforge.types import Threat
from tests.attacks.oracles import Counted, linear_classes, small_images, small_net
from tests.attacks.peers import foolbox


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize(
    ("classes", "attack"),
    [(2, FMN()), (2, FMN(targets=1)), (5, FMN(targets=1)), (5, MinimumNorm())],  # away from the class may lead astray
    ids=["away-2", "nearest-2", "nearest-5", "cascade-5"],
)
def test_fmn_finds_the_exact_distance_to_the_nearest_boundary(norm, classes, attack):
    model, x, y = linear_classes(classes, count=30)
    found = attack.run(model, x, y, threat=Threat(norm, 1.0), minimise=True).distance
    exact = model.distance(x, y, norm)
    assert (found >= exact * (1 - 1e-9)).all()
    # The radius ends within gamma * LAST_GAMMA of the boundary, 0.001, and the last steps may be on either side of it.
    assert (found <= exact * 1.003).all()


def test_ddn_finds_the_distance_to_the_boundary():
    model, x, y = linear_classes(2, count=30)
    found = DDN(initial_eps=0.1).run(model, x, y, threat=Threat("l2", 1.0), minimise=True).distance
    exact = model.distance(x, y, "l2")
    assert (found >= exact * (1 - 1e-9)).all()
    # Lengths are products of 0.95 and 1.05, so they meet the boundary only roughly; 5 % is gamma.
    assert (found <= exact * 1.05).all()
    assert (found / exact).mean() < 1.01


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_every_distance_is_that_of_an_image_that_fools_the_model(norm):
    model = small_net()
    x, y = small_images(model, 40)
    y[:5] = (y[:5] + 1) % 4
    threat = Threat(norm, {"linf": 0.01, "l2": 0.06, "l1": 0.5}[norm])
    result = FMN().run(model, x, y, threat=threat, minimise=True)
    assert 5 < result.broken.sum() < 40  # some are robust up to eps
    assert torch.equal(result.broken, is_misclassified(model, result.images, y))
    assert torch.equal(result.broken, result.distance.isfinite())
    moved = norms.of(norm).distance(result.images - x)
    torch.testing.assert_close(result.distance[result.broken], moved[result.broken], rtol=0, atol=0)
    assert result.distance[:5].tolist() == [0.0] * 5
    assert (result.distance[result.broken] <= threat.eps + 1e-5).all()


def test_an_image_leaves_once_it_is_broken_unless_the_distance_is_minimised():
    model = small_net()
    x, y = small_images(model)
    threat = Threat("linf", 0.5)
    leaves, stays = (FMN().run(model, x, y, threat=threat, minimise=minimise) for minimise in (False, True))
    assert leaves.broken.all()
    assert (stays.distance <= leaves.distance).all()
    assert (stays.distance < leaves.distance).any()
    assert (leaves.backwards < 40).all()
    assert (stays.backwards == 40).all()


def test_a_success_on_the_folded_copy_alone_does_not_count():
    model, x, y = linear_classes(2, count=10)
    shift = torch.tensor([0.1, -0.1], dtype=torch.float64)  # which moves the boundary toward half of the images
    nearer = Prepared(model, lambda images: model(images) + shift)
    found = FMN().run(nearer, x, y, threat=Threat("l2", 1.0), minimise=True)
    exact = model.distance(x, y, "l2")
    assert (found.distance >= exact * (1 - 1e-9)).all()


@pytest.mark.parametrize("attack", [FMN(steps=6), FMN(steps=6, targets=2), DDN(steps=6), MinimumNorm()])
def test_the_passes_reported_are_the_passes_made_while_minimising(attack):
    model = Counted(small_net())
    x, y = small_images(small_net(), 20)
    result = attack.run(model, x, y, threat=Threat("l2", 0.06), minimise=True)
    assert 0 < result.broken.sum() < 20
    assert int(result.forwards.sum()) == model.images


def test_a_robust_image_costs_one_forward_and_one_backward_per_step():
    model = small_net()
    x, y = small_images(model)
    result = FMN(steps=6).run(model, x, y, threat=Threat("linf", 1e-7), minimise=True)
    assert result.forwards.tolist() == [1 + 6 + 1] * len(x)
    assert result.backwards.tolist() == [6] * len(x)


def test_ddn_refuses_other_norms():
    model = small_net()
    with pytest.raises(InputError, match="ddn knows the norm l2, got linf; use fmn"):
        DDN().run(model, *small_images(model), threat=Threat("linf", 0.1))


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (FMN, {"steps": 0}, "steps must be at least 1, got 0"),
        (FMN, {"targets": -1}, "targets must be at least 0, got -1"),
        (FMN, {"gamma": 1.0}, "gamma lie between 0 and 1"),
        (DDN, {"step_size": 0.0}, "step_size must be above 0"),
        (DDN, {"initial_eps": 0.0}, "initial_eps must be above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(kind, settings, message):
    with pytest.raises(InputError, match=message):
        kind(**settings)


@pytest.mark.parametrize(
    ("norm", "ours", "peer"),
    [
        ("linf", FMN(steps=40), foolbox.attacks.LInfFMNAttack(steps=40)),
        ("l1", FMN(steps=40), foolbox.attacks.L1FMNAttack(steps=40)),
        ("l2", DDN(steps=40), foolbox.attacks.DDNAttack(steps=40)),
    ],
    ids=["fmn-linf", "fmn-l1", "ddn-l2"],
)
def test_the_median_distance_is_no_larger_than_foolboxs(fitted, norm, ours, peer):
    net, x, y = (fitted[0], *(part[:40] for part in fitted[1:]))
    eps = {"linf": 1.0, "l2": 4.0, "l1": 100.0}[norm]
    found = ours.run(net, x, y, threat=Threat(norm, eps), minimise=True).distance
    _, points, _ = peer(foolbox.PyTorchModel(net, bounds=(0, 1)), x, y, epsilons=None)
    theirs = torch.where(is_misclassified(net, points, y), norms.of(norm).distance(points - x), torch.inf)
    assert found.isfinite().all()
    # Both come near the boundary in 40 steps; a tenth is what their schedules may differ by.
    assert found.median() <= 1.1 * theirs.median()
