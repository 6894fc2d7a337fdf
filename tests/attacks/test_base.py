"""The checks and the gradient that all attacks share."""

import pytest
import torch
from torch import nn

from lipforge.attacks import FGSM, PGD
from lipforge.attacks.base import input_gradient
from lipforge.attacks.losses import cross_entropy
from lipforge.errors import InputError, ModelError
from lipforge.types import Threat
from tests.attacks.oracles import small_images, small_net

THREAT = Threat("linf", "8/255")
ATTACKS = [FGSM(), PGD(steps=3)]


def test_the_input_gradient_is_the_numerical_one():
    model = small_net().double()
    x, y = small_images(small_net(), 2)
    x = x.double()
    gradient, logits = input_gradient(model, x, y, cross_entropy)
    change = torch.zeros_like(x)
    change[1, 2, 3, 4] = 1e-6
    difference = cross_entropy(model(x + change), y) - cross_entropy(model(x - change), y)
    assert difference[1].item() / 2e-6 == pytest.approx(gradient[1, 2, 3, 4].item(), rel=1e-5)
    torch.testing.assert_close(logits, model(x).detach())


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_parameters_get_no_gradient(attack):
    model = small_net()
    x, y = small_images(model)
    attack(model, x, y, threat=THREAT)
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_the_images_given_are_not_changed(attack):
    model = small_net()
    x, y = small_images(model)
    before = x.clone()
    attack(model, x, y, threat=THREAT)
    assert torch.equal(x, before)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_channels_last_and_strided_images_give_the_same_result(attack):
    model = small_net()
    x, y = small_images(model)
    expected = attack(model, x, y, threat=THREAT)
    strided = x.repeat_interleave(2, dim=3)[:, :, :, ::2]
    assert not strided.is_contiguous()
    # The kernel for another layout adds in another order, so a gradient near 0 could in principle change its sign.
    torch.testing.assert_close(attack(model, strided, y, threat=THREAT), expected)
    last = x.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(attack(model, last, y, threat=THREAT), expected)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_no_images_give_no_images(attack):
    x = torch.zeros(0, 3, 6, 6)
    assert attack(small_net(), x, torch.zeros(0, dtype=torch.int64), threat=THREAT).shape == x.shape


def test_a_model_in_train_mode_is_refused():
    model = small_net()
    x, y = small_images(model)
    with pytest.raises(ModelError, match="eval mode"):
        PGD()(model.train(), x, y, threat=THREAT)


def test_images_outside_the_unit_range_are_refused():
    model = small_net()
    x, y = small_images(model)
    with pytest.raises(InputError, match="must lie in"):
        PGD()(model, 2 * x, y, threat=THREAT)


def test_labels_the_model_does_not_have_are_refused():
    model = small_net(classes=4)
    x, y = small_images(model)
    with pytest.raises(InputError, match=r"labels must lie in \[0, 4\)"):
        PGD()(model, x, y + 4, threat=THREAT)


def test_labels_that_are_not_one_per_image_are_refused():
    model = small_net()
    x, y = small_images(model)
    with pytest.raises(InputError, match="one per image"):
        FGSM()(model, x, y[:-1], threat=THREAT)


def test_sample_ids_that_are_not_one_per_image_are_refused():
    model = small_net()
    x, y = small_images(model)
    with pytest.raises(InputError, match="sample_ids must be one per image"):
        PGD()(model, x, y, threat=THREAT, sample_ids=torch.arange(3))


def test_nan_logits_are_reported_with_their_image():
    def broken(x):
        logits = x.flatten(1)[:, :4]
        return torch.where(torch.arange(len(x))[:, None] == 5, torch.nan, logits)

    x, y = small_images(small_net())
    with pytest.raises(ModelError, match="image 5"):
        FGSM()(broken, x, y, threat=THREAT)


def test_outputs_that_are_not_logits_are_refused():
    x, y = small_images(small_net())
    with pytest.raises(ModelError, match="must return logits"):
        FGSM()(nn.Identity().eval(), x, y, threat=THREAT)
