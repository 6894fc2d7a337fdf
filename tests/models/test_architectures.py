"""What all own architectures promise, whatever they are made of."""

import copy

import pytest
import torch
from torch import nn

from lipforge.models import preact_resnet18, resnet, vit, wide_resnet

SMALL = {
    "resnet": lambda: resnet(8, 4, 7),
    "resnet with conv shortcuts": lambda: resnet(8, 4, 7, shortcut="conv"),
    "preact resnet": lambda: preact_resnet18(7, width=4),
    "wide resnet": lambda: wide_resnet(10, 1, 7),
    "wide resnet with silu": lambda: wide_resnet(10, 1, 7, activation="silu"),
    "vit": lambda: vit(16, 2, 2, 7),
}


@pytest.fixture(params=SMALL, name="model")
def _model(request) -> nn.Module:
    torch.manual_seed(0)
    return SMALL[request.param]().eval()


@pytest.fixture(name="images")
def _images() -> torch.Tensor:
    return torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_logits_have_one_row_per_image_and_one_column_per_class(model, images):
    assert model(images).shape == (3, 7)


def test_eval_logits_of_an_image_do_not_depend_on_its_batch_or_on_earlier_calls(model, images):
    together = model(images)
    torch.testing.assert_close(model(images), together, rtol=0, atol=0)
    torch.testing.assert_close(model(images[1:2]), together[1:2], rtol=1e-5, atol=1e-6)


def test_the_gradient_reaches_every_pixel_and_every_parameter(model, images):
    images.requires_grad_(True)
    model(images).square().sum().backward()
    assert images.grad is not None
    assert (images.grad != 0).all()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_the_first_layer_sees_normalised_images(model):
    seen = []
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(1, 3, 1, 1).expand(1, 3, 32, 32)
    model(mean)
    torch.testing.assert_close(seen[0], torch.zeros(1, 3, 32, 32))


def test_a_state_dict_holds_no_normalisation_and_restores_the_logits(model, images):
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        nn.init.uniform_(parameter)
    other.load_state_dict(model.state_dict())
    assert not [name for name in model.state_dict() if "normalize" in name]
    torch.testing.assert_close(other(images), model(images), rtol=0, atol=0)
