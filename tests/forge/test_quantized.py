"""Quantized models: forged before torch.ao or torchao changes them, or after."""

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from lipforge.errors import SiteError
from lipforge.forge.calibrate import forge_
from lipforge.forge.insert import forges, remove_, set_ratio_
from lipforge.forge.recipe import weights_digest
from lipforge.forge.views import forged, plain
from lipforge.runs.identity import model_identity
from tests.nets import images, seeded

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # it says which of its CUDA kernels a CPU lacks
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_

    logging.disable(logging.NOTSET)

IMAGES = images(16, size=8)


@pytest.fixture(name="net")
def _net() -> nn.Module:
    return perceptron(0)


def perceptron(seed: int) -> nn.Module:
    def build() -> nn.Module:
        layers = (nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
        return nn.Sequential(nn.Flatten(), *layers)

    return seeded(build, seed).eval()


@contextlib.contextmanager
def deprecated() -> Iterator[None]:
    """torch.ao warns that torchao takes its place; people still use it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def quantized(model: nn.Module) -> nn.Module:
    with deprecated():
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8).eval()


def test_dynamic_quantization_keeps_the_forged_layers_and_quantizes_the_others(net):
    forge_(net, IMAGES, ratio=1.0)
    found = quantized(net)
    assert list(forges(found)) == list(forges(net)) == ["3"]
    layer, first = found.get_submodule("3"), found.get_submodule("1")
    # A ratio of 1 suppresses all up to the bound, so the layer's output is its bias.
    bias = layer.get_parameter("bias")
    assert torch.equal(layer(forges(net)["3"].bound.expand(1, 32))[0], bias)
    assert type(first).__module__.startswith("torch.ao")


def test_a_dynamically_quantized_model_is_told_to_forge_first(net):
    with deprecated(), pytest.raises(SiteError, match=r"no sites \('1'\); forge the model before quantizing it"):
        forge_(quantized(net), IMAGES)


@pytest.mark.parametrize("config", [Int8WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig])
def test_torchao_quantizes_forged_layers_and_the_masks_stay(net, config):
    forge_(net, IMAGES, ratio=0.25)
    expected, unforged = net(IMAGES), plain(net)(IMAGES)
    quantize_(net, config())
    assert list(forges(net)) == ["3"]
    assert type(net[3].weight).__name__ == "Int8Tensor"
    rounding, masks = (net(IMAGES) - expected).abs().max(), (unforged - expected).abs().max()
    assert rounding < 0.1 * masks


@pytest.mark.parametrize("config", [Int8WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig])
def test_a_model_that_torchao_quantized_can_be_forged_and_restored(net, config):
    quantize_(net, config())
    before = net(IMAGES)
    recipe = forge_(net, IMAGES, ratio=0.25)
    assert not torch.equal(forged(net)(IMAGES), before)
    assert torch.equal(plain(net)(IMAGES), before)
    twin = perceptron(0)
    quantize_(twin, config())
    recipe.apply_(twin)
    assert torch.equal(twin(IMAGES), net(IMAGES))
    set_ratio_(net, 0.5)
    remove_(net)
    assert torch.equal(net(IMAGES), before)


@pytest.mark.parametrize("digest", [weights_digest, model_identity])
def test_quantized_weights_tell_models_apart(net, digest):
    other = copy.deepcopy(net)
    other[1].weight.data.mul_(0.5)
    with deprecated():
        assert digest(quantized(net)) == digest(quantized(net)) != digest(quantized(other))
    once, again = copy.deepcopy(net), copy.deepcopy(net)
    for model in (once, again, other):
        quantize_(model, Int8WeightOnlyConfig())
    assert digest(once) == digest(again) != digest(other)
