import pytest
import torch

from lipforge.errors import InputError
from lipforge.models import wide_resnet
from lipforge.models.robustbench import import_robustbench


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
