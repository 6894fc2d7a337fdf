"""The versions of AutoAttack: their attacks, their budgets, few classes, and their notes."""

import pytest
import torch

from lipforge.attacks import APGD, FAB, AutoAttack, Cascade, Escalate, Rounds, Square, TargetedAPGD, autoattack
from lipforge.errors import InputError
from lipforge.types import Threat
from tests.attacks.oracles import linear_classes, small_images, small_net
from tests.attacks.test_checks import Rounding


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("standard", (APGD(), TargetedAPGD(), FAB(), Square())),
        (
            "plus",
            (
                APGD(restarts=5),
                APGD(loss="dlr", restarts=5),
                FAB(targets=0, restarts=5),
                Square(),
                TargetedAPGD(),
                FAB(),
            ),
        ),
        ("rand", (APGD(repeats=20), APGD(loss="dlr", repeats=20))),
        (
            "fast",
            (
                APGD(steps=20, loss="margin"),
                TargetedAPGD(steps=20, targets=2, loss="margin", order="near"),
                Rounds(),
                Escalate(),
            ),
        ),
    ],
)
def test_the_attacks_and_budgets_are_the_documented_ones(version, expected):
    assert autoattack(version).cascade(10).attacks == expected
    assert (APGD().steps, TargetedAPGD().targets, FAB().steps, Square().queries) == (100, 9, 100, 5000)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("version", ["standard", "fast"])
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_few_classes_are_attacked_exactly(classes, version, norm):
    model, x, y = linear_classes(classes, count=24)
    distance = model.distance(x, y, norm)
    # All images can be fooled, some just so: none should be left for Square's 5,000 queries.
    result = autoattack(version).run(model, x, y, threat=Threat(norm, 1.01 * float(distance.max())))
    assert result.fooled.all()
    if version == "standard":
        assert any(f"the model has {classes} classes" in note for note in result.notes)


@pytest.mark.parametrize("version", ["standard", "fast"])
def test_l1_is_attacked_without_fab(version):
    model, x, y = linear_classes(5, count=24)
    threat = Threat("l1", 1.2 * float(model.distance(x, y, "l1").max()))
    result = autoattack(version).run(model, x, y, threat=threat)
    assert result.fooled.all()
    assert any("fab does not know l1" in note for note in result.notes) == (version == "standard")
    names = [attack.name for attack in autoattack().cascade(10, "l1").attacks]
    assert names == ["apgd", "apgd-t", "square"]
    assert autoattack().cascade(10, "l1").attacks[:2] == (APGD(restarts=5), TargetedAPGD(targets=5))
    with pytest.raises(InputError, match="linf and l2, got l1"):
        autoattack("plus").run(model, x, y, threat=threat)


def test_fast_says_that_it_escalated_without_fab_in_l1():
    model = Rounding().eval()
    x, _ = small_images(small_net(), 2)
    y = model(x).argmax(dim=1)
    result = Escalate(queries=1).run(model, x, y, threat=Threat("l1", 30.0))
    assert any("looked masked" in note for note in result.notes)
    assert any("fab does not know l1" in note for note in result.notes)


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
    assert any("gradient of exactly 0" in note for note in result.notes)
    assert any("Square, which uses no gradients" in note for note in result.notes)


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.012), ("l2", 0.45)])
def test_fast_leaves_as_many_as_the_gradient_attacks_of_standard_in_a_third_of_the_passes(fitted, norm, eps):
    net, x, y = fitted
    fast = autoattack("fast").run(net, x, y, threat=Threat(norm, eps))
    slow = Cascade((APGD(), TargetedAPGD())).run(net, x, y, threat=Threat(norm, eps))
    assert 16 <= (~slow.fooled).sum() <= 64
    assert (~fast.fooled).sum() <= (~slow.fooled).sum() + 1
    gradient_stages = fast.stages[1:4]
    assert sum(stage.backwards for stage in gradient_stages) < 0.3 * int(slow.backwards.sum())


def test_rand_averages_over_a_random_model_without_a_note():
    net = small_net(classes=4)
    x, y = small_images(net, 6)
    generator = torch.Generator().manual_seed(0)

    def noisy(images):
        return net(images) + 0.01 * torch.randn(len(images), 4, generator=generator)

    result = autoattack("rand").run(noisy, x, y, threat=Threat("linf", 0.06))
    assert result.notes == ()
    assert [stage.attack for stage in result.stages[:2]] == ["clean", "apgd:repeats=20"]
    assert result.fooled.sum() >= 3


def test_a_model_with_one_class_and_an_unknown_version_are_refused():
    with pytest.raises(InputError, match="at least 2 classes"):
        AutoAttack().cascade(1)
    with pytest.raises(InputError, match="one of standard, plus, rand, fast, got 'best'"):
        AutoAttack("best")
