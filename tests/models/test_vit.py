import pytest
import torch

from lipforge.errors import InputError
from lipforge.models import vit
from lipforge.models.packages import import_package


def test_the_parameter_count_is_the_sum_of_its_parts():
    dim, depth, classes = 192, 12, 10
    block = (3 * dim * dim + 3 * dim) + (dim * dim + dim) + (8 * dim * dim + 5 * dim) + 4 * dim
    embedding = (3 * 16 * dim + dim) + dim + 65 * dim
    expected = embedding + depth * block + 2 * dim + (dim * classes + classes)
    assert sum(parameter.numel() for parameter in vit(dim, depth, 3).parameters()) == expected


def test_patches_must_tile_the_image():
    with pytest.raises(InputError, match="multiple of patch_size"):
        vit(patch_size=5)


def test_heads_must_divide_the_dimension():
    with pytest.raises(InputError, match="multiple of heads"):
        vit(dim=100, heads=3)


@pytest.mark.zoo
def test_logits_equal_those_of_timm_with_the_same_weights():
    import_package("timm")
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    own = vit(48, 3, 4, 10, mean=(0, 0, 0), std=(1, 1, 1)).eval()
    peer = VisionTransformer(img_size=32, patch_size=4, num_classes=10, embed_dim=48, depth=3, num_heads=4).eval()
    for parameter in peer.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    own.load_state_dict(peer.state_dict())
    images = torch.rand(4, 3, 32, 32)
    torch.testing.assert_close(own(images), peer(images))
