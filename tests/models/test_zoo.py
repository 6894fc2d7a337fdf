import gc

import pytest
import torch
from torch import nn

from lipforge.models import carried_masks, load_model, resnet
from lipforge.models.robustbench import find_entry
from tests.models.published import MEAN_SPARSE_MODELS, PAPER_MODELS

OTHERS = (
    "robustbench:cifar10/Linf/Peng2023Robust",
    "robustbench:cifar10/Linf/Bai2024MixedNUTS",
    "robustbench:imagenet/Linf/Bai2024MixedNUTS",
    "robustbench:imagenet/Linf/Liu2023Comprehensive_ConvNeXt-L",
)


@pytest.fixture(autouse=True)
def _free_memory():
    """These models take up to 2 GB each; none of them may outlive its test."""
    yield
    gc.collect()


@pytest.mark.zoo
def test_all_names_of_the_tables_are_in_robustbench():
    specs = [model.spec for model in PAPER_MODELS] + [*MEAN_SPARSE_MODELS, *OTHERS]
    assert len(PAPER_MODELS) == 13
    assert len(set(specs)) == 13 + 6 + len(OTHERS)
    for spec in specs:
        assert find_entry(spec.removeprefix("robustbench:")).drive_ids


# Closed forms: a mask before each of the two activations and at the end of each block of the WideResNets, and one
# before the head; two per block of ConvNeXt-L (3 + 3 + 27 + 3 blocks) and four per block of Swin-L (24 blocks).
MASKS = {
    "cifar10/Linf/Amini2024MeanSparse_Ra_WRN_70_16": 3 * (30 + 31 + 10) + 1,
    "cifar10/Linf/Amini2024MeanSparse_S-WRN-94-16": 3 * 3 * (94 - 4) // 6 + 1,
    "cifar10/L2/Amini2024MeanSparse_S-WRN-70-16": 3 * 3 * (70 - 4) // 6 + 1,
    "cifar100/Linf/Amini2024MeanSparse_S-WRN-70-16": 3 * 3 * (70 - 4) // 6 + 1,
    "imagenet/Linf/Amini2024MeanSparse_ConvNeXt-L": 2 * (3 + 3 + 27 + 3),
    "imagenet/Linf/Amini2024MeanSparse_Swin-L": 4 * 24,
}


@pytest.mark.zoo
@pytest.mark.slow
@pytest.mark.parametrize("spec", MEAN_SPARSE_MODELS)
def test_mean_sparse_models_are_known_to_carry_masks(spec):
    assert len(carried_masks(load_model(spec, pretrained=False))) == MASKS[spec.removeprefix("robustbench:")]


class Mask(nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("running_mean", "running_var", "threshold"):
            self.register_buffer(name, torch.zeros(3))


def test_masks_are_named_where_they_are():
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Sequential(Mask(), nn.ReLU()), nn.BatchNorm2d(3, affine=False))
    assert carried_masks(model) == ["1.0"]


def test_ordinary_models_carry_no_masks():
    assert carried_masks(resnet(8, 2)) == []
