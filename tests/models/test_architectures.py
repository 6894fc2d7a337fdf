"""What all own architectures promise, whatever they are made of."""

import copy
import hashlib

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from lipforge.errors import InputError, WeightsError, suggest
from lipforge.models import preact_resnet18, resnet, vit, wide_resnet
from lipforge.models.architectures import (
    EXAMPLES,
    build_architecture,
    bundled_names,
    is_architecture,
    load_bundled,
    parse_architecture,
    read_card,
)
from lipforge.models.networks import WideResNet
from lipforge.records import write_json

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


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_listed_name_builds_with_any_number_of_classes(name):
    with torch.device("meta"):
        model = build_architecture(name, {"classes": 7})
        assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 7)


def test_numbers_in_a_name_are_depth_and_width():
    model = build_architecture("wrn-16-2", {})
    assert isinstance(model, WideResNet)
    assert len(model.block1.layer) == 2
    assert model.fc.in_features == 128


def test_spec_arguments_reach_the_builder():
    name, arguments = parse_architecture("wrn-10-1:activation=silu,classes=5")
    model = build_architecture(name, arguments)
    assert isinstance(model, WideResNet)
    assert isinstance(model.activation, nn.SiLU)
    assert model.fc.out_features == 5


@pytest.mark.parametrize("spec", ["resnet20:build", "resnets:build", "unet", "wrn-28", "vit-huge", "timm:resnet18"])
def test_other_specs_are_not_taken_for_architectures(spec):
    assert not is_architecture(spec)


def test_an_unknown_argument_is_refused_with_the_nearest_one():
    with pytest.raises(InputError, match=r"no argument 'widht'; it takes width, .* did you mean 'width'"):
        build_architecture("resnet20", {"widht": 3})


def test_an_argument_that_the_name_fixes_cannot_be_given_twice():
    with pytest.raises(InputError, match="no argument 'depth'"):
        build_architecture("resnet20", {"depth": 32})


@pytest.mark.parametrize("value", [0, -1, "ten", 2.5])
def test_a_count_must_be_a_positive_whole_number(value):
    with pytest.raises(InputError, match="classes of 'resnet20' must be a whole number above 0"):
        build_architecture("resnet20", {"classes": value})


@pytest.mark.parametrize("text", ["width", "width=", "=3", "width=3,width=4"])
def test_arguments_that_are_not_pairs_are_refused(text):
    with pytest.raises(InputError, match="key=value"):
        parse_architecture(f"resnet20:{text}")


@pytest.fixture(name="shelf")
def _shelf(tmp_path):
    """A directory with one bundled model, made the way the real ones are."""
    torch.manual_seed(3)
    save_file(resnet(8, 2, 5).state_dict(), tmp_path / "tiny.safetensors")
    digest = hashlib.sha256((tmp_path / "tiny.safetensors").read_bytes()).hexdigest()
    card = {"architecture": "resnet8", "arguments": {"width": 2, "classes": 5}, "sha256": digest, "data": "none"}
    write_json(tmp_path / "tiny.json", card)
    return tmp_path


def test_two_files_make_a_bundled_model(shelf):
    torch.manual_seed(3)
    expected = resnet(8, 2, 5)
    assert bundled_names(shelf) == ["tiny"]
    torch.testing.assert_close(load_bundled("tiny", shelf).state_dict(), expected.state_dict(), rtol=0, atol=0)


def test_a_card_keeps_what_it_says_beyond_the_necessary(shelf):
    assert read_card("tiny", shelf).about == {"data": "none"}


def test_changed_weights_are_refused(shelf):
    path = shelf / "tiny.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"tiny\.safetensors has SHA-256 .* changed or damaged"):
        load_bundled("tiny", shelf)


def test_missing_weights_are_reported_but_not_needed_for_the_architecture(shelf):
    (shelf / "tiny.safetensors").unlink()
    with pytest.raises(WeightsError, match="missing"):
        load_bundled("tiny", shelf)
    assert load_bundled("tiny", shelf, pretrained=False)(torch.zeros(1, 3, 32, 32)).shape == (1, 5)


def test_a_card_without_checksum_is_refused(shelf):
    write_json(shelf / "tiny.json", {"architecture": "resnet8", "arguments": {}})
    with pytest.raises(WeightsError, match=r"tiny\.json lacks 'sha256'"):
        load_bundled("tiny", shelf)


def test_an_unknown_name_gets_the_nearest_one(shelf):
    with pytest.raises(InputError, match="no bundled model 'tinny'; did you mean 'tiny'"):
        load_bundled("tinny", shelf)


def test_every_model_that_ships_loads_and_says_its_number_of_classes():
    for name in bundled_names():
        classes = read_card(name).arguments["classes"]
        assert load_bundled(name).eval()(torch.zeros(1, 3, 32, 32)).shape == (1, classes), name


def test_case_does_not_matter_and_the_true_spelling_comes_back():
    assert suggest("WU2020adversarial", ["Wu2020Adversarial"]) == "; did you mean 'Wu2020Adversarial'?"


def test_at_most_three_names_are_suggested_nearest_first():
    told = suggest("resnet20", ["resnet21", "resnet2", "resnet22", "resnet23", "vgg"])
    assert told.count("resnet") == 3
    assert "vgg" not in told
