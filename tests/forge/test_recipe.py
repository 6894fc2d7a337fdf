import json

import pytest
import torch

from lipforge.errors import RecipeError
from lipforge.forge.calibrate import forge_
from lipforge.forge.insert import forges, insert_, remove_, set_ratio_
from lipforge.forge.layer import Forge
from lipforge.forge.masks import MeanCentred, Piecewise, Smooth, Step
from lipforge.forge.recipe import architecture_digest, load_recipe, recipe_of, save_recipe, weights_digest
from lipforge.forge.sites import find_sites
from tests.nets import ResidualNet, Transformer, images, seeded


@pytest.mark.parametrize("mask", [Step(), Piecewise(0.25), Smooth(8, 4), MeanCentred()])
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_saved_recipe_forges_a_fresh_model_to_the_same_bits(tmp_path, mask, per_channel):
    model, x = seeded(ResidualNet), images(4)
    recipe = forge_(model, images(16), mask=mask, ratio=0.1, per_channel=per_channel)
    recipe.save(tmp_path / "recipe.json")
    fresh = seeded(ResidualNet)
    loaded = load_recipe(tmp_path / "recipe.json")
    loaded.apply_(fresh)
    assert loaded == recipe
    assert recipe_of(fresh) == recipe
    assert torch.equal(fresh(x), model(x))


def test_a_recipe_is_json_that_a_person_can_read(tmp_path):
    model = seeded(ResidualNet)
    forge_(model, images(16), mask=Piecewise(0.25), ratio=2**-7, data="sixteen random images")
    save_recipe(tmp_path / "recipe.json", model)
    fields = json.loads((tmp_path / "recipe.json").read_text())
    assert fields["format"] == 2
    assert fields["mask"] == {"name": "piecewise", "d": 0.25}
    assert fields["images_seen"] == 16
    assert fields["data"] == "sixteen random images"
    assert fields["statistic"] == "maximum"
    assert fields["architecture"] == architecture_digest(seeded(ResidualNet))
    assert fields["weights"] == weights_digest(seeded(ResidualNet))
    assert fields["sites"]["block2.conv1"]["ratio"] == 2**-7
    assert fields["sites"]["block2.conv1"]["bound"] == forges(model)["block2.conv1"].bound.item()


def test_ratios_per_site_are_kept(tmp_path):
    model = seeded(ResidualNet)
    forge_(model, images(16), ratio={"*": 0.1, "block2.*": 0.2})
    save_recipe(tmp_path / "recipe.json", model)
    fresh = seeded(ResidualNet)
    load_recipe(tmp_path / "recipe.json").apply_(fresh)
    assert [forge.ratio for forge in forges(fresh).values()] == [0.1, 0.1, 0.2, 0.2]
    assert recipe_of(fresh).ratio is None
    set_ratio_(fresh, 0.3)
    assert recipe_of(fresh).ratio == 0.3


def test_a_recipe_for_another_architecture_names_the_sites_that_differ():
    recipe = forge_(seeded(ResidualNet), images(16))
    wider, other = seeded(ResidualNet, width=12), seeded(Transformer)
    with pytest.raises(RecipeError, match=r"another architecture: 'block1\.conv1' takes 12 features, not 8"):
        recipe.apply_(wider)
    with pytest.raises(RecipeError, match=r"'block1\.conv1' does not exist"):
        recipe.apply_(other)
    assert forges(wider) == forges(other) == {}


def test_a_recipe_for_another_head_is_refused_unless_asked_for():
    recipe = forge_(seeded(ResidualNet), images(16))
    other = seeded(ResidualNet, classes=100)
    with pytest.raises(RecipeError, match="all sites fit, but other tensors of the model differ; strict=False"):
        recipe.apply_(other)
    with pytest.warns(UserWarning, match="calibrated on other weights"):
        recipe.apply_(other, strict=False)
    assert len(forges(other)) == 4


def test_other_weights_are_a_warning():
    recipe = forge_(seeded(ResidualNet), images(16))
    with pytest.warns(UserWarning, match="calibrated on other weights; calibrate_ makes new bounds"):
        recipe.apply_(seeded(ResidualNet, seed=1))


def test_applying_twice_is_refused():
    model = seeded(ResidualNet)
    recipe = forge_(model, images(16))
    with pytest.raises(RecipeError, match="changed already"):
        recipe.apply_(model)
    remove_(model)
    recipe.apply_(model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"centre": None}, "centre goes with the mask mean_centred"),
        ({"bound": 1.0}, "centre must have one value per channel"),
        ({"bound": [1.0] * 5}, r"bound must have one value per channel \(8\), got 5"),
        ({"centre": [float("nan")] * 8}, "centre must be finite"),
        ({"centre": "abc"}, "centre must be a number or a list"),
        ({"bound": [True] * 8}, "bound must be finite"),
        ({"bound": [1e300] * 8}, "bound must be finite"),
        ({"channel_dim": 2}, r"channel_dim must lie in -4\.\.-1, got 2"),
        ({"channel_dim": "x"}, "channel_dim must lie"),
        ({"in_features": "8"}, "in_features must be a count"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_crafted_site_is_refused_when_it_is_read(tmp_path, change, message):
    path = tmp_path / "recipe.json"
    forge_(seeded(ResidualNet), images(16), mask=MeanCentred(), ratio=0.1).save(path)
    fields = json.loads(path.read_text())
    fields["sites"]["block1.conv1"].update(change)
    path.write_text(json.dumps(fields))
    with pytest.raises(RecipeError, match=rf"site 'block1\.conv1': .*{message}"):
        load_recipe(path)


@pytest.mark.parametrize("change", [{"format": True}, {"images_seen": "many"}, {"data": 7}, {"sites": [1]}])
def test_a_crafted_field_is_refused_when_it_is_read(tmp_path, change):
    path = tmp_path / "recipe.json"
    forge_(seeded(ResidualNet), images(16)).save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(RecipeError, match="is not a recipe that this version reads"):
        load_recipe(path)


def test_a_site_that_is_no_layer_is_refused(tmp_path):
    path = tmp_path / "recipe.json"
    model = seeded(ResidualNet)
    forge_(model, images(16)).save(path)
    remove_(model)
    fields = json.loads(path.read_text())
    fields["sites"]["block1"] = {**fields["sites"]["block1.conv1"], "layer": "Block"}
    path.write_text(json.dumps(fields))
    with pytest.raises(RecipeError, match="'block1' is a Block, not a Block"):
        load_recipe(path).apply_(model)
    assert forges(model) == {}


def test_a_model_forged_in_two_ways_has_no_one_recipe():
    model = seeded(ResidualNet)
    sites = list(find_sites(model))
    insert_(model, sites[:2], mask=Step(), ratio=0.1)
    insert_(model, sites[2:], mask=Piecewise(), ratio=0.1)
    with pytest.raises(RecipeError, match=r"one mask and one calibration, but site 'block2\.conv1' has another"):
        recipe_of(model)


def test_a_recipe_that_fails_half_way_leaves_the_model_alone(tmp_path, monkeypatch):
    model = seeded(ResidualNet)
    path = tmp_path / "recipe.json"
    forge_(model, images(16), per_channel=True).save(path)
    remove_(model)
    recipe = load_recipe(path)
    monkeypatch.setattr(Forge, "set_bound", lambda forge, bound, centre: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        recipe.apply_(model)
    assert forges(model) == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "not valid JSON.*cut short"),
        (lambda text: "<html>404</html>", "not valid JSON"),
        (lambda text: "[1, 2]", "it holds no object"),
        (lambda text: text.replace('"format": 2', '"format": 99'), "its format is 99, expected 2"),
        (lambda text: text.replace('"step"', '"stepp"'), "mask must be one of"),
        (lambda text: text.replace('"ratio": 0.0078125', '"ratio": 7'), "ratio must be a number"),
        (lambda text: text.replace('"images_seen"', '"images_sen"'), "images_se"),
        (lambda text: text.replace('"format": 2', '"form": 2'), "it lacks 'format'"),
        (lambda text: json.dumps({**json.loads(text), "sites": {}}), "it has no sites"),
    ],
)
def test_a_damaged_recipe_is_named(tmp_path, change, message):
    path = tmp_path / "recipe.json"
    forge_(seeded(ResidualNet), images(16)).save(path)
    path.write_text(change(path.read_text()))
    with pytest.raises(RecipeError, match=message) as caught:
        load_recipe(path)
    assert str(path) in str(caught.value)


def test_a_missing_recipe_is_named(tmp_path):
    with pytest.raises(RecipeError, match=r"no file .*nothing\.json"):
        load_recipe(tmp_path / "nothing.json")


def test_digests_see_shapes_and_bytes_but_not_forging():
    model = seeded(ResidualNet)
    before = architecture_digest(model), weights_digest(model)
    forge_(model, images(16))
    assert (architecture_digest(model), weights_digest(model)) == before
    with torch.no_grad():
        model.head.bias[3] += 1e-7
    assert architecture_digest(model) == before[0]
    assert weights_digest(model) != before[1]
    assert architecture_digest(seeded(ResidualNet, classes=11)) != before[0]
