"""A forged model is still a torch model: checkpoints, copies, pickles, hooks, precisions, devices and threads."""

import copy
import io
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import remove_parametrizations

from lipforge.errors import SiteError
from lipforge.forge.calibrate import calibrate_, forge_
from lipforge.forge.insert import forges, insert_, remove_, set_ratio_
from lipforge.forge.layer import Forge
from lipforge.forge.masks import MeanCentred, Piecewise, Smooth, Step
from lipforge.forge.sites import find_sites
from lipforge.forge.views import forged, plain
from tests.forge.test_insert import RATIO, forged_model
from tests.nets import ResidualNet, ReusingNet, TorchAttentionNet, images, seeded


class OwnPickleConv(nn.Conv2d):
    """Pickles by a function of its own."""

    def __reduce__(self):
        return type(self), (self.in_channels, self.out_channels, 3, 1, 1), self.__dict__


class OwnPickleNet(ReusingNet):
    def __init__(self) -> None:
        super().__init__()
        self.conv = OwnPickleConv(6, 6, 3, 1, 1)


def test_checkpoint_keys_do_not_change_and_checkpoints_load():
    model, fresh = forged_model(), seeded(ResidualNet, seed=1)
    assert list(model.state_dict()) == list(fresh.state_dict())
    model.load_state_dict(fresh.state_dict())
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    assert all(forge.bound > 0 for forge in forges(model).values())


def test_layers_keep_their_kind_and_name_and_get_their_class_back():
    model = forged_model()
    conv, unforged = model.block1.conv1, str(seeded(ResidualNet).block1.conv1)
    assert isinstance(conv, nn.Conv2d)
    assert type(conv) is type(model.block2.conv2)
    assert type(conv).__name__ == "Conv2d"
    assert str(conv).startswith("Conv2d(\n  8, 8, kernel_size=(3, 3)")
    assert "(forge): Forge(mask=Step(), ratio=0.125" in str(conv)
    assert find_sites(model).sites == find_sites(seeded(ResidualNet)).sites
    remove_(model)
    assert type(conv) is nn.Conv2d
    assert str(conv) == unforged


def test_a_saved_model_is_forged_in_a_fresh_process(tmp_path):
    model, x = forged_model(ratio=0.5), images(2)
    torch.save(model, tmp_path / "model.pt")
    load = f"""
import torch
from lipforge.forge import forges, remove_
from tests.nets import images
model = torch.load({str(tmp_path / "model.pt")!r}, weights_only=False)
forged = model(images(2))
remove_(model)
torch.save([forged, model(images(2)), type(model.block1.conv1).__module__], {str(tmp_path / "logits.pt")!r})
"""
    subprocess.run([sys.executable, "-c", load], check=True, cwd=Path(__file__).parents[2])
    logits, unforged, module = torch.load(tmp_path / "logits.pt", weights_only=True)
    assert torch.equal(logits, model(x))
    assert torch.equal(unforged, seeded(ResidualNet)(x))
    assert module == "torch.nn.modules.conv"


def test_a_layer_that_pickles_itself_is_forged_after_it():
    model, x = forged_model(OwnPickleNet, ratio=0.5), images(2)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), pickle.loads(pickle.dumps(model, 0))):
        assert torch.equal(other(x), model(x))
        remove_(other)
        assert type(other.conv) is OwnPickleConv
        assert torch.equal(other(x), plain(model)(x))


def test_no_fast_path_goes_around_the_forged_functions():
    """TransformerEncoderLayer reads the weights of its layers instead of calling them, if no gradient is needed."""
    model, x = forged_model(TorchAttentionNet, ratio=0.25), images(2)
    expected = model(x)
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected)
        assert not torch.allclose(plain(model)(x), expected, atol=1e-3)


def test_hooks_of_others_run_around_the_forged_function():
    model, seen = forged_model(ratio=0.5), dict[str, Any]()
    conv: Any = model.block1.conv1
    conv.register_forward_pre_hook(lambda layer, args: seen.update(before=args[0]))
    conv.forge.register_forward_hook(lambda forge, args, out: seen.update(forge_in=args[0], forge_out=out))
    conv.register_forward_hook(lambda layer, args, out: seen.update(after=args[0], out=out))
    model(images(2))
    assert seen["before"] is seen["forge_in"]
    assert seen["after"] is seen["before"]
    assert torch.equal(seen["out"], nn.functional.conv2d(seen["forge_out"], conv.weight, padding=1))


def test_a_forward_set_on_the_object_is_refused():
    model: Any = seeded(ResidualNet)
    sites = find_sites(model)
    model.block1.conv1.forward = lambda x: x
    with pytest.raises(SiteError, match=r"'block1\.conv1' has a forward set on the object.*exclude"):
        insert_(model, sites)
    assert forges(model) == {}


def test_parametrized_layers_can_be_forged_but_not_the_other_way_round():
    model, x = seeded(ResidualNet), images(2)
    weight_norm(model.block1.conv1).eval()
    before = model(x)
    forge_(model, images(8), ratio=0.5)
    assert torch.equal(forged(model)(x), model(x))
    assert torch.equal(plain(model)(x), before)
    weight_norm(model.block1.conv2).eval()
    with pytest.raises(SiteError, match=r"'block1\.conv2' changed its class after it was forged"):
        remove_(model)
    assert len(forges(model)) == 4
    remove_parametrizations(model.block1.conv2, "weight")
    remove_(model)
    torch.testing.assert_close(model(x), before)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_forged_and_independent(duplicate):
    model, x = forged_model(), images(4)
    other = duplicate(model)
    assert torch.equal(other(x), model(x))
    before = model(x)
    set_ratio_(other, 0.5)
    assert torch.equal(model(x), before)
    assert not torch.equal(other(x), before)
    remove_(other)
    assert torch.equal(model(x), before)


def test_data_parallel_is_forged_through():
    model, x = seeded(ResidualNet), images(4)
    wrapped = nn.DataParallel(model)
    insert_(wrapped, find_sites(wrapped), ratio=RATIO)
    calibrate_(wrapped, images(32))
    assert list(forges(wrapped)) == ["block1.conv1", "block1.conv2", "block2.conv1", "block2.conv2"]
    assert torch.equal(wrapped(x), forged_model()(x))
    remove_(wrapped)
    assert torch.equal(wrapped(x), seeded(ResidualNet)(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("mask", [Step(), Piecewise(), Smooth(), MeanCentred()])
@pytest.mark.parametrize("per_channel", [False, True])
def test_other_precisions_work_and_keep_their_type(dtype, mask, per_channel):
    model = seeded(ResidualNet).to(dtype)
    forge_(model, images(8).to(dtype), mask=mask, ratio=0.1, per_channel=per_channel)
    x = images(2).to(dtype).requires_grad_()
    logits = model(x)
    assert logits.dtype == dtype
    assert torch.autograd.grad(logits.float().sum(), x)[0].isfinite().all()
    assert len(find_sites(plain(model))) == 4


def test_half_precision_does_not_move_a_threshold():
    model = forged_model()
    before = {name: forge.threshold for name, forge in forges(model).items()}
    model.half()
    set_ratio_(model, RATIO)
    assert {name: forge.threshold for name, forge in forges(model).items()} == before


def test_forges_follow_the_model_to_another_device():
    model = forged_model().to("meta")
    assert {forge.bound.device.type for forge in forges(model).values()} == {"meta"}


def test_threads_can_call_one_forged_model():
    model, batches = forged_model(), [images(4, seed=seed) for seed in range(8)]
    expected = [model(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(model, batches))
    assert all(torch.equal(result, wanted) for result, wanted in zip(results, expected, strict=True))


def test_forges_are_modules_of_the_model():
    model = forged_model()
    assert sum(isinstance(module, Forge) for module in model.modules()) == 4
    assert torch.equal(forged(model)(images(2)), model(images(2)))
