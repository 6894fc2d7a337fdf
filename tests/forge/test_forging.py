import pytest
import torch

from lipforge.errors import CalibrationError, InputError, ModelError, SiteError
from lipforge.forge.calibrate import forge_
from lipforge.forge.insert import forges
from lipforge.forge.masks import Piecewise
from tests.nets import PlainNet, ResidualNet, Transformer, images, seeded


def test_one_call_forges_a_model_never_seen_before():
    model, x = seeded(ResidualNet), images(4)
    before = model(x)
    recipe = forge_(model, images(32), mask=Piecewise(0.5), ratio=2**-4)
    assert list(recipe.bounds) == ["block1.conv1", "block1.conv2", "block2.conv1", "block2.conv2"]
    assert recipe.ratio == 2**-4
    assert recipe.mask == Piecewise(0.5)
    assert recipe.images_seen == 32
    assert not torch.equal(model(x), before)


def test_the_default_is_the_papers_headline_setting():
    recipe = forge_(seeded(Transformer), images(8))
    assert (recipe.mask.name, recipe.ratio, recipe.statistic) == ("step", 2**-7, "maximum")


def test_rules_and_globs_reach_the_sites():
    recipe = forge_(seeded(ResidualNet), images(8), rules=["residual_convs", "shortcut_convs"], exclude=["block1.*"])
    assert list(recipe.bounds) == ["block2.conv1", "block2.conv2", "block2.shortcut"]


def test_a_plain_net_is_forged_too():
    assert list(forge_(seeded(PlainNet), images(8)).bounds) == ["layers.2", "layers.5"]


def broken(model: ResidualNet) -> ResidualNet:
    model.stem.weight.data[0] = float("nan")
    return model


@pytest.mark.parametrize(
    ("model", "source", "options", "error", "message"),
    [
        (seeded(ResidualNet), images(4) * 3, {}, InputError, r"\[0, 1\]"),
        (seeded(ResidualNet), [], {}, InputError, "empty"),
        (seeded(ResidualNet), iter([]), {}, InputError, "empty"),
        (seeded(ResidualNet), [images(4), images(4) + 1], {}, InputError, "first in image 4"),
        (seeded(ResidualNet), images(4), {"ratio": 3}, InputError, "ratio must be"),
        (seeded(ResidualNet), images(4), {"ratio": {"no*": 0.1}}, SiteError, "no forged site matches"),
        (seeded(ResidualNet), images(4), {"rules": ["all"]}, SiteError, "unknown rule"),
        (seeded(ResidualNet).train(), images(4), {}, ModelError, "eval mode"),
        (broken(seeded(ResidualNet)), images(4), {}, CalibrationError, r"site 'block1\.conv1' saw .* in image 0"),
    ],
)
def test_on_any_error_the_model_is_as_before(model, source, options, error, message):
    with pytest.raises(error, match=message):
        forge_(model, source, **options)
    assert forges(model) == {}
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_forging_twice_is_refused():
    model = seeded(ResidualNet)
    forge_(model, images(8))
    with pytest.raises(SiteError, match=r"forged already \(4 sites\)"):
        forge_(model, images(8))
    assert len(forges(model)) == 4
