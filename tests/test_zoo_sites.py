"""Sites on the real classes of RobustBench, timm and torchvision: random weights, a real pass, forged for real."""

import gc

import pytest
import torch
from torch import nn

from lipforge.forge.calibrate import forge_
from lipforge.forge.insert import forges
from lipforge.forge.sites import find_sites
from lipforge.models import carried_masks, load_model
from tests.models.published import PAPER_MODELS

pytestmark = [pytest.mark.zoo, pytest.mark.filterwarnings("ignore")]  # the packages warn about each other

OTHERS = {
    # 71 blocks of two convs. Its squeeze-and-excitation layers scale a block's output and are not on the main path.
    "robustbench:cifar10/Linf/Peng2023Robust": 142,
    # Depthwise convs are opt-in, so two linear layers for each of 36 blocks.
    "robustbench:imagenet/Linf/Liu2023Comprehensive_ConvNeXt-L": 72,
    # Both of its networks: 50 bottlenecks of three convs, and Peng2023Robust.
    "robustbench:cifar10/Linf/Bai2024MixedNUTS": 150 + 142,
    "torchvision:resnet50": 48,
    "torchvision:swin_t": 24,
    "torchvision:vit_b_16": 24,
    "timm:vit_base_patch16_224": 24,
    "timm:deit_tiny_patch16_224": 24,
    "timm:swin_tiny_patch4_window7_224": 24,
    "timm:convnext_tiny": 36,
    "timm:seresnet50": 48,
    "preactresnet18": 16,
    "wrn-28-10": 24,
    "resnet20": 18,
}
COUNTS = {**{model.spec: model.sites for model in PAPER_MODELS}, **OTHERS}


@pytest.fixture(autouse=True)
def _free_memory():
    yield
    gc.collect()


def random_model(spec: str) -> nn.Module:
    return load_model(spec, pretrained=False)


def image_size(spec: str) -> int:
    return 224 if spec.startswith(("robustbench:imagenet", "timm:", "torchvision:")) else 32


@pytest.mark.parametrize("spec", COUNTS)
def test_a_published_model_is_forged_at_the_expected_sites(spec):
    model = random_model(spec)
    assert carried_masks(model) == []
    size = image_size(spec)
    image = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    recipe = forge_(model, image)
    assert len(recipe.sites) == COUNTS[spec]
    assert all(forge.bound > 0 for forge in forges(model).values())
    assert not any(name.endswith(("shortcut", "convShortcut", "qkv", "attn.proj")) for name in recipe.sites)


def test_the_trades_wide_resnet_has_convs_that_it_never_calls():
    model = random_model("robustbench:cifar10/Linf/Wu2020Adversarial_extra")
    convs = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    survey = find_sites(model)
    unused = [layer.name for layer in survey.skipped if layer.reason.startswith("never called")]
    assert (len(convs), len(survey), len(unused)) == (37, 24, 9)
    assert all(name.split(".")[-4] == "sub_block1" or "sub_block1" in name for name in unused)


def test_opt_in_rules_reach_depthwise_convs_and_attention():
    convnext, deit = random_model("timm:convnext_tiny"), random_model("timm:deit_tiny_patch16_224")
    assert len(find_sites(convnext, rules=["depthwise_convs"])) == 18
    assert len(find_sites(deit, rules=["attention_projections"])) == 24
