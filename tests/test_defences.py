"""The zoo of broken defences is what it says, usable classifiers that are broken, and `fast` does not fall for it."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

import lipforge as lf
from lipforge.attacks import cascades
from tests.defences import DEFENCES, Defence, correct, robust_to_truths

THREAT = lf.Threat("linf", "8/255")

HARD = {"cifar10-resnet-natural": 19, "cifar10-resnet": 15}
"""The image with the largest margin, for each net, of those among the first 32 that 20 steps of APGD break."""

OVERSTATED = (
    "wiggle 1/255 at 6000",
    "hidden wiggle",
    "decoy",
    "linear decoy",
    "negated gradient",
    "half wrong gradient",
    "saturated logits",
)
"""Defences that `fast` overstates around either net, so that its result must say `unreliable`."""


PROBED = "flat decoy"
"""What only a walk along the boundary sees, which `fast` takes from a random image in 4."""


@pytest.fixture(scope="module")
def base() -> nn.Module:
    """A net without robustness of its own: whatever looks robust on top of it is not."""
    return lf.load_model("cifar10-resnet-natural")


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    return lf.load_data("cifar10-sample").batch(range(32))


@pytest.fixture(scope="module", params=DEFENCES, ids=lambda defence: defence.name)
def built(request, base) -> tuple[Defence, nn.Module]:
    """Each defence with its defended classifier, which the tests share: calibrating a mask takes a second."""
    return request.param, request.param.build(base)


def test_names_differ():
    assert len({defence.name for defence in DEFENCES}) == len(DEFENCES)


@torch.no_grad()
def test_a_defence_is_a_classifier_that_keeps_its_accuracy(built, base, data):
    (defence, defended), (x, y) = built, data
    logits = defended(x)
    assert logits.shape == (32, 10)
    assert logits.isfinite().all()
    assert not any(module.training for module in defended.modules())
    assert torch.equal(logits, defended(x)) != defence.random
    kept = correct(defence.judge(defended), x, y)  # a random defence by its mean logits: one draw may be unlucky
    assert int(kept.sum()) >= int(correct(base, x, y).sum()) - 32 * defence.tolerance


def test_truths_judge_as_the_defence_and_have_gradients(built, base, data):
    defence, defended = built
    x = data[0][:2].clone().requires_grad_()
    judge = defence.judge(defended)
    expected = judge(x)
    assert torch.equal(expected, judge(x))
    for name, truth in defence.truths(base, judge).items():
        logits = truth(x)
        torch.testing.assert_close(logits, expected, msg=name)
        (gradient,) = torch.autograd.grad(logits[:, 0].sum(), x)
        assert gradient.flatten(1).abs().sum(dim=1).min() > 0, name


def test_the_truth_breaks_every_image(built, base, data):
    """So it breaks at least as many as `fast`, which need not run: on masked gradients it takes minutes."""
    defence, defended = built
    x, y = (part[:4] for part in data)
    assert not robust_to_truths(defence, base, defended, x, y, THREAT).any()


@pytest.fixture
def few_queries(monkeypatch):
    """Square with a tenth of its queries, which take most of the time. A weaker `fast` overstates more, not less."""
    monkeypatch.setattr(cascades, "BLACK_BOX", dataclasses.replace(cascades.BLACK_BOX, queries=100))


@pytest.mark.parametrize(
    "net", ["cifar10-resnet-natural", pytest.param("cifar10-resnet", marks=pytest.mark.slow)], ids=["natural", "robust"]
)
@pytest.mark.parametrize("defence", [one for one in DEFENCES if one.name != PROBED], ids=lambda defence: defence.name)
@pytest.mark.usefixtures("few_queries")
def test_fast_never_overstates_a_defence_unless_it_says_unreliable(defence, net, data):
    base, (x, y) = lf.load_model(net), (part[HARD[net]][None] for part in data)
    defended = defence.build(base)
    # At this seed the image is not in the sample that gets Square anyway.
    found = lf.evaluate(defended, (x, y), lf.fast(), THREAT, seed=1, show_progress=False)
    known = defence.name in OVERSTATED
    assert found.unreliable or not known
    if known or not found.unreliable:
        left = torch.tensor(found.robust)
        truth = robust_to_truths(defence, base, defended, x[left], y[left], THREAT) if left.any() else left
        assert (int(left.sum() - truth.sum()) > 0.01 * len(x)) == known


@pytest.mark.parametrize(("norm", "eps"), [("linf", "2/255"), ("l2", 0.25)])
def test_a_walk_along_the_boundary_finds_what_looks_honest_everywhere_but_leads_nowhere(norm, eps, base, data):
    (decoy,), threat = (one for one in DEFENCES if one.name == PROBED), lf.Threat(norm, eps)
    defended, (x, y) = decoy.build(base), (part[:8] for part in data)
    plain = lf.APGD(steps=10, loss="margin").run(defended, x, y, threat=threat)
    walked = lf.Boundary(steps=10).run(defended, x, y, threat=threat)
    assert plain.broken.sum() <= 2
    assert walked.broken.sum() >= 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "norm", "eps"),
    [
        ("cifar10-resnet", "linf", "8/255"),
        ("cifar10-vit", "linf", "8/255"),
        ("cifar10-resnet-natural", "linf", "1/510"),
        ("cifar10-resnet", "l2", 0.5),
    ],
)
def test_fast_does_not_call_an_honest_net_unreliable(net, norm, eps):
    images = lf.load_data("cifar10-sample").batch(range(300, 324))
    found = lf.evaluate(lf.load_model(net), images, lf.fast(), lf.Threat(norm, eps), show_progress=False)
    assert sum(found.robust) >= 5
    assert not found.unreliable, found.notes
