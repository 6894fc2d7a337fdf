import pytest
import torch
from torch import nn

from lipforge.errors import InputError
from lipforge.models import Normalize, preact_resnet18, resnet, vit, wide_resnet
from lipforge.models.networks import BasicBlock, PadShortcut
from lipforge.models.packages import import_package
from lipforge.models.robustbench import import_robustbench


def test_each_channel_is_shifted_and_scaled_by_its_own_numbers():
    images = torch.tensor([0.5, 0.75]).view(1, 2, 1, 1).expand(1, 2, 3, 3)
    expected = torch.tensor([1.0, -1.0]).view(1, 2, 1, 1).expand(1, 2, 3, 3)
    torch.testing.assert_close(Normalize((0.25, 1.0), (0.25, 0.25))(images), expected)


def test_it_follows_the_model_to_another_dtype():
    assert Normalize((0.5,), (0.5,)).double()(torch.zeros(1, 1, 1, 1, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(("mean", "std"), [((0.5,), (0.5, 0.5)), ((), ())])
def test_mean_and_std_must_match(mean, std):
    with pytest.raises(InputError, match="one value per channel"):
        Normalize(mean, std)


def test_a_zero_std_is_refused():
    with pytest.raises(InputError, match="above 0"):
        Normalize((0.5, 0.5), (0.5, 0.0))


def test_grey_images_are_not_broadcast_to_three_channels():
    with pytest.raises(InputError, match=r"must have 3 channels here, got the shape \(2, 1, 4, 4\)"):
        Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))(torch.zeros(2, 1, 4, 4))


def test_the_numbers_are_visible_when_printed():
    assert str(Normalize((0.4914,), (0.247,))) == "Normalize(mean=[0.4914], std=[0.247])"


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# He et al. 2016a, table 6, in millions.
@pytest.mark.parametrize(("depth", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)])
def test_parameter_counts_are_those_of_the_paper(depth, millions):
    assert round(parameters(resnet(depth)) / 1e6, 2 if depth < 110 else 1) == millions


def test_conv_shortcuts_cost_two_convolutions_and_their_batch_norms():
    extra = 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64
    assert parameters(resnet(20, shortcut="conv")) - parameters(resnet(20)) == extra


def test_preact_resnet18_has_11_17_million_parameters():
    assert parameters(preact_resnet18()) == 11_172_170


def test_the_pad_shortcut_keeps_every_second_pixel_and_adds_zero_channels():
    x = torch.arange(32.0).view(1, 2, 4, 4)
    y = PadShortcut(channels=2, stride=2)(x)
    assert y.shape == (1, 4, 2, 2)
    assert y[0, 1].tolist() == [[0, 2], [8, 10]]
    assert y[0, 2].tolist() == [[16, 18], [24, 26]]
    assert y[0, [0, 3]].abs().sum() == 0


@pytest.mark.parametrize("depth", [2, 18, 21])
def test_a_depth_that_is_not_6n_plus_2_is_refused(depth):
    with pytest.raises(InputError, match=f"6n \\+ 2 .* got {depth}"):
        resnet(depth)


def test_an_unknown_shortcut_is_refused():
    with pytest.raises(InputError, match="'pad' or 'conv'"):
        resnet(20, shortcut="none")  # type: ignore[arg-type]  # the error is the point


@pytest.mark.zoo
@pytest.mark.parametrize("stride", [1, 2])
def test_a_basic_block_equals_that_of_torchvision(stride):
    import_package("torchvision")
    from torchvision.models.resnet import BasicBlock as PeerBlock

    torch.manual_seed(0)
    x = torch.randn(4, 6, 8, 8)
    own = BasicBlock(6, 6 * stride, stride, "conv")
    downsample = nn.Sequential(nn.Conv2d(6, 12, 1, 2, bias=False), nn.BatchNorm2d(12)) if stride == 2 else None
    peer = PeerBlock(6, 6 * stride, stride, downsample)
    own(x)  # batch norm statistics other than the initial 0 and 1
    peer.load_state_dict({name.replace("shortcut", "downsample"): value for name, value in own.state_dict().items()})
    torch.testing.assert_close(own.eval()(x), peer.eval()(x))


@pytest.mark.zoo
def test_preact_resnet18_equals_that_of_robustbench_with_the_same_weights():
    import_robustbench()
    from robustbench.model_zoo.architectures.resnet import PreActBlock as PeerBlock
    from robustbench.model_zoo.architectures.resnet import PreActResNet as PeerNet

    torch.manual_seed(0)
    images = torch.rand(2, 3, 32, 32)
    peer = PeerNet(PeerBlock, [2, 2, 2, 2], bn_before_fc=True, out_shortcut=True)
    peer.train()(images)
    own = preact_resnet18(mean=(0, 0, 0), std=(1, 1, 1))
    own.load_state_dict(peer.state_dict())
    torch.testing.assert_close(own.eval()(images), peer.eval()(images))


# 36.5M (Zagoruyko and Komodakis, table 5); 46.16M is the size that the RobustBench papers give.
@pytest.mark.parametrize(("depth", "width", "count"), [(28, 10, 36_479_194), (34, 10, 46_160_474)])
def test_parameter_counts_are_the_published_ones(depth, width, count):
    with torch.device("meta"):
        model = wide_resnet(depth, width)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize("depth", [4, 20, 29])
def test_a_depth_that_is_not_6n_plus_4_is_refused(depth):
    with pytest.raises(InputError, match=f"6n \\+ 4 .* got {depth}"):
        wide_resnet(depth)


def test_a_width_of_zero_is_refused():
    with pytest.raises(InputError, match="at least 1"):
        wide_resnet(10, 0)


def test_an_unknown_activation_is_refused():
    with pytest.raises(InputError, match="one of relu, silu, got 'tanh'"):
        wide_resnet(10, 1, activation="tanh")  # type: ignore[arg-type]  # the error is the point


@pytest.mark.zoo
def test_logits_equal_those_of_the_trades_wide_resnet_with_the_same_weights():
    import_robustbench()
    from robustbench.model_zoo.architectures.wide_resnet import WideResNet

    torch.manual_seed(0)
    peer = WideResNet(depth=16, widen_factor=2, sub_block1=False).train()
    images = torch.rand(4, 3, 32, 32)
    peer(images)  # batch norm statistics other than the initial 0 and 1
    own = wide_resnet(16, 2, mean=(0, 0, 0), std=(1, 1, 1))
    own.load_state_dict(peer.state_dict())
    torch.testing.assert_close(own.eval()(images), peer.eval()(images))


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
