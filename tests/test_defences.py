"""The zoo of broken defences is what it says: usable classifiers that keep their accuracy and are broken."""

import pytest
import torch
from torch import Tensor, nn

import lipforge as lf
from tests.defences import DEFENCES, Defence, correct, robust_to_truths

THREAT = lf.Threat("linf", "8/255")


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
    assert int((logits.argmax(dim=1) == y).sum()) >= int(correct(base, x, y).sum()) - 32 * defence.tolerance


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
