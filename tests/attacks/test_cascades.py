"""AutoAttack and `fast`: attacks, budgets and notes, the stopping rule, and the escalation of suspicious images."""

import pytest
import torch

from lipforge.attacks import (
    APGD,
    FAB,
    PGD,
    AutoAttack,
    Cascade,
    Escalate,
    Nearest,
    Prepared,
    Restarts,
    Square,
    TargetedAPGD,
    autoattack,
    fast,
    spelled,
)
from lipforge.attacks.cascades import attack_folded_only
from lipforge.attacks.state import AttackState
from lipforge.data import load_data
from lipforge.errors import InputError
from lipforge.models import load_model
from lipforge.types import Threat
from tests.attacks.oracles import linear_classes, small_images, small_net
from tests.attacks.test_checks import Rounding

THREAT = Threat("linf", 1e-4)  # nothing is broken


def test_an_image_far_from_the_boundary_costs_what_the_page_says():
    # float64: at this eps a margin changes by little more than float32 rounds, and the probe compares margins.
    model = small_net(classes=10).double()
    x, y = small_images(small_net(classes=10), 40)
    result = fast(fold=False).run(model, x.double(), y, threat=Threat("linf", 1e-5))
    assert result.early_stopped.all()
    probed, walked = result.forwards > 300, result.backwards > 21  # one in 16, and one in 4
    assert 0 < probed.sum() < walked.sum() < 20
    checks = torch.where(torch.arange(40) < 32, 2, 0)  # of the model
    announced = result.forwards - checks - 25  # on the way to one far point, or to two
    walk = 2 + 6 + 5 * 11  # to a far point and back, and five steps
    assert announced[probed].min() >= 12 + 301
    assert announced[probed].max() <= 24 + 301 + walk
    assert 24 < announced[walked & ~probed].max() <= 24 + walk
    # Two more where a walk found no far point of another class.
    assert {12} < set(announced[~walked & ~probed].tolist()) <= {12, 24, 26}
    assert set(result.backwards.tolist()) == {21, 21 + 5}


def test_only_classes_within_reach_are_aimed_at():
    model, x, y = linear_classes(5, count=60)
    distance = model.distances(x, y, "linf").sort(dim=1).values
    eps = float(distance[:, 0].median()) * 0.9
    result = Nearest(steps=7, targets=2, within=1.5).run(model, x, y, threat=Threat("linf", eps))
    assert torch.equal(result.broken, distance[:, 0] < eps)
    reached = (distance[:, :2] < 1.5 * eps).sum(dim=1)
    assert set(reached[~result.broken].tolist()) == {0, 1, 2}  # or the rule was not put to the test
    # Beside the runs: gradients toward 4 classes, and two of the test for masked gradients
    assert torch.equal(result.backwards[~result.broken], (4 + 2 + 7 * reached)[~result.broken])


def steepening(x):
    """Class 1 is linear and 1.47 eps away; class 2 looks 8 eps away, and gets steeper on the way to it."""
    rise = (x.mean(dim=(1, 2, 3)) - 0.5) / THREAT.eps
    steep = 0.2 * rise + 4.0 * (rise - 0.35).clamp_min(0.0) - 1.6
    return torch.stack([torch.zeros_like(rise), -rise - 1.47, steep], dim=1)


def test_a_class_that_only_looks_far_away_is_found():
    x, y = torch.full((8, 3, 4, 4), 0.5, dtype=torch.float64), torch.zeros(8, dtype=torch.int64)
    assert TargetedAPGD(steps=5, targets=2, loss="margin").run(steepening, x, y, threat=THREAT).broken.all()
    assert fast().run(steepening, x, y, threat=THREAT).broken.all()


def flat_and_spiked(x):
    """Class 1 is honest and out of reach; class 2 is exactly flat at the image, with a spike inside the ball."""
    rise = (x.mean(dim=(1, 2, 3)) - 0.5) / THREAT.eps
    spike = 2.0 - 20.0 * (rise - 0.6).abs()
    return torch.stack([torch.zeros_like(rise), -0.5 * rise - 1.0, spike.clamp_min(-1.5)], dim=1)


def test_a_class_without_a_gradient_makes_an_image_suspicious():
    x, y = torch.full((8, 3, 4, 4), 0.5, dtype=torch.float64), torch.zeros(8, dtype=torch.int64)
    result = fast().run(flat_and_spiked, x, y, threat=THREAT)
    assert {note.kind for note in result.notes} >= {"zero_gradient", "escalated"}


def test_where_gradients_are_masked_all_classes_are_aimed_at():
    model = Rounding().eval()
    x, _ = small_images(small_net(), 6)
    result = Nearest(steps=7, targets=2).run(model, x, model(x).argmax(dim=1), threat=Threat("linf", 0.005))
    assert (result.backwards[~result.broken] >= 2 * 7).all()
    assert not result.broken.all()


def test_an_image_that_is_broken_is_not_early_stopped():
    model = small_net()
    x, y = small_images(model, 40)
    result = Restarts(steps=10, near=10.0).run(model, x, y, threat=Threat("linf", 0.01))
    assert 5 < result.broken.sum() < 40
    assert not (result.early_stopped & result.broken).any()


def test_an_honest_model_is_probed_and_not_escalated():
    model = small_net(classes=4)
    attack = Cascade((APGD(steps=5, loss="margin"), Escalate(queries=20, every=1, walk=1)))
    result = attack.run(model, *small_images(model, 10), threat=THREAT)
    names = [stage.attack for stage in result.stages]
    assert names == ["clean", "apgd:steps=5,loss=margin", "probe", "boundary:steps=5,bisections=6"]
    assert result.notes == ()
    before, walk = (sum(stage.forwards for stage in part) for part in (result.stages[:-1], result.stages[-1:]))
    assert before - 10 * (1 + 6 + 10 + 21) in range(12 * 10, 24 * 10 + 1, 12)
    assert 10 * 8 <= walk <= 10 * (2 + 6 + 5 * 11)
    assert set(result.backwards.tolist()) <= {5 + 2, 5 + 2 + 5}


def test_a_random_image_in_every_is_probed_the_same_in_any_batch():
    model = small_net()
    x, y = small_images(model, 40)
    attack = Cascade((APGD(steps=5, loss="margin"), Escalate(queries=20, every=4, walk=100)))
    threat, ids = Threat("linf", 1e-4), torch.arange(40)
    whole = attack.run(model, x, y, threat=threat, sample_ids=ids)
    half = attack.run(model, x[20:], y[20:], threat=threat, sample_ids=ids[20:])
    assert 2 < (whole.forwards > 17 + 24).sum() < 25
    assert torch.equal(whole.forwards[20:], half.forwards)


def test_images_without_gradients_are_attacked_by_square_and_noted():
    model = Rounding().eval()
    x, _ = small_images(small_net(), 2)
    y = model(x).argmax(dim=1)
    result = Cascade((APGD(steps=5, loss="margin"), Escalate(queries=2))).run(model, x, y, threat=Threat("linf", 0.005))
    names = [stage.attack for stage in result.stages]
    assert names[:3] == ["clean", "apgd:steps=5,loss=margin", "probe"]
    assert "square:queries=1000,rescale=true" in names
    assert {"escalated", "zero_gradient", "masked_gradients"} <= {note.kind for note in result.notes}


def test_what_breaks_only_on_the_folded_copy_is_attacked_on_the_model_itself_and_noted():
    model = small_net()
    x, y = small_images(model, 6)
    turned = Prepared(model, lambda images: -model(images))  # always fooled, and leads away from where the model is
    assert not APGD(steps=20).run(turned, x, y, threat=Threat("linf", 0.1)).broken.any()
    result = fast().run(turned, x, y, threat=Threat("linf", 0.1))
    assert result.broken.all()
    # Some of the others are broken by chance, at a random point that the folded copy was asked about.
    (note,) = (note for note in result.notes if note.kind == "folded_copy_only")
    assert note.count == result.outcome.count("apgd") > 2


@pytest.mark.slow
def test_a_real_model_behind_a_quantiser_is_escalated_and_broken_without_gradients():
    robust = load_model("cifar10-resnet")
    x, y = load_data("cifar10-sample").batch(range(8))
    right = (robust(x).argmax(dim=1) == y).nonzero().squeeze(1)[:2]
    x, y = x[right], y[right]

    def quantised(images):
        return robust((images * 31).round() / 31)  # a gradient of 0 wherever there is one

    result = fast().run(quantised, x, y, threat=Threat("linf", "16/255"))
    assert any("looked masked and were attacked again, by square" in str(note) for note in result.notes)
    assert result.stages[-1].attack == "square:queries=1000,rescale=true"
    assert result.broken.all()


def test_an_attack_on_images_that_broke_on_the_copy_leaves_the_rest_alone():
    model = small_net()
    x, y = small_images(model, 6)
    state = AttackState(Prepared(model, lambda images: 2 * model(images)), x, y, threat=THREAT, seed=0, sample_ids=y)
    state.clean_logits()
    folded, state.folded_only[2] = state.folded, True
    assert attack_folded_only(state, PGD(steps=3), PGD(steps=3)).tolist() == [False, False, True, False, False, False]
    assert state.forwards.tolist() == [1, 1, 1 + 4, 1, 1, 1]
    assert state.folded is folded
    assert not attack_folded_only(state, PGD(steps=3), PGD(steps=3)).any()


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (Restarts, {"steps": 0}, "at least 1"),
        (Restarts, {"rounds": 0}, "at least 1"),
        (Restarts, {"gain": 0.0}, "gain must be above 0"),
        (Escalate, {"queries": 0}, "queries must be at least 1"),
        (Nearest, {"within": 0.5}, "within must be at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(kind, settings, message):
    with pytest.raises(InputError, match=message):
        kind(**settings)


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        (autoattack("standard"), (APGD(), TargetedAPGD(), FAB(), Square())),
        (
            autoattack("plus"),
            (
                APGD(restarts=5),
                APGD(loss="dlr", restarts=5),
                FAB(targets=0, restarts=5),
                Square(),
                TargetedAPGD(),
                FAB(),
            ),
        ),
        (autoattack("rand"), (APGD(eot_iter=20), APGD(loss="dlr", eot_iter=20))),
        (
            fast(),
            (
                APGD(steps=10, loss="margin"),
                Nearest(steps=20, targets=2, within=1.3),
                Restarts(),
                Escalate(),
            ),
        ),
    ],
)
def test_the_attacks_and_budgets_are_the_documented_ones(attack, expected):
    assert attack.cascade(10).attacks == expected
    assert (APGD().steps, TargetedAPGD().targets, FAB().steps, Square().queries) == (100, 9, 100, 5000)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("attack", [autoattack(), fast()], ids=spelled)
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_few_classes_are_attacked_exactly(classes, attack, norm):
    model, x, y = linear_classes(classes, count=24)
    distance = model.distance(x, y, norm)
    # All images can be broken, some just so: none should be left for Square's 5,000 queries.
    result = attack.run(model, x, y, threat=Threat(norm, 1.01 * float(distance.max())))
    assert result.broken.all()
    if attack == autoattack():
        assert any(f"the model has {classes} classes" in note.text for note in result.notes)


@pytest.mark.parametrize("attack", [autoattack(), fast()], ids=spelled)
def test_l1_is_attacked_as_in_the_reference(attack):
    model, x, y = linear_classes(5, count=24)
    threat = Threat("l1", 1.2 * float(model.distance(x, y, "l1").max()))
    result = attack.run(model, x, y, threat=threat)
    assert result.broken.all()


def test_the_budgets_in_l1_are_those_of_the_reference():
    first = (APGD(restarts=5), TargetedAPGD(targets=5))
    assert autoattack().cascade(10, "l1").attacks == (*first, FAB(targets=9), Square())
    assert autoattack("plus").cascade(10, "l1") == autoattack("plus").cascade(10, "linf")


@pytest.mark.parametrize("classes", [2, 3])
def test_rand_and_plus_find_losses_that_fit_few_classes(classes):
    losses = {attack.loss for attack in AutoAttack("rand").cascade(classes).attacks}  # type: ignore[attr-defined]
    assert losses == {"ce", "margin" if classes == 2 else "dlr"}
    plus = AutoAttack("plus").cascade(classes).attacks
    assert plus[4] == TargetedAPGD(targets=classes - 1, loss="margin")


@pytest.mark.slow
def test_masked_gradients_are_noted_twice():
    model = Rounding().eval()
    x, y = small_images(small_net(), 6)
    result = autoattack().run(model, x, y, threat=Threat("linf", 0.03))
    assert any(note.kind == "zero_gradient" for note in result.notes)
    assert any(note.kind == "square" for note in result.notes)


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.012), ("l2", 0.45)])
def test_fast_leaves_as_many_as_the_gradient_attacks_of_standard_in_a_third_of_the_passes(fitted, norm, eps):
    net, x, y = fitted
    quick = fast().run(net, x, y, threat=Threat(norm, eps))
    slow = Cascade((APGD(), TargetedAPGD())).run(net, x, y, threat=Threat(norm, eps))
    assert 16 <= (~slow.broken).sum() <= 64
    assert (~quick.broken).sum() <= (~slow.broken).sum() + 1
    gradient_stages = quick.stages[1:4]
    assert sum(stage.backwards for stage in gradient_stages) < 0.3 * int(slow.backwards.sum())


def test_rand_averages_over_a_random_model_without_a_note():
    net = small_net(classes=4)
    x, y = small_images(net, 6)
    generator = torch.Generator().manual_seed(0)

    def noisy(images):
        return net(images) + 0.01 * torch.randn(len(images), 4, generator=generator)

    result = autoattack("rand").run(noisy, x, y, threat=Threat("linf", 0.06))
    assert result.notes == ()
    assert [stage.attack for stage in result.stages[:2]] == ["clean", "apgd:eot_iter=20"]
    assert result.broken.sum() >= 3


def test_a_model_with_one_class_and_an_unknown_version_are_refused():
    with pytest.raises(InputError, match="at least 2 classes"):
        AutoAttack().cascade(1)
    with pytest.raises(InputError, match="one of standard, plus, rand, got 'best'"):
        AutoAttack("best")
    for old in (AutoAttack, autoattack):
        with pytest.raises(InputError, match=r"called fast now; use fast\(\), or --attack fast"):
            old("fast")  # type: ignore[arg-type]  # refused
