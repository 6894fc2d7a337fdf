"""Recipes of TTA, head and affine parts."""

import base64
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lipforge.errors import RecipeError, SiteError
from lipforge.forge.calibrate import forge_
from lipforge.forge.head import Head, set_head_
from lipforge.forge.insert import forges, is_changed, remove_, set_ratio_
from lipforge.forge.recipe import load_recipe, recipe_of, save_recipe, weights_digest
from lipforge.forge.tta import TTA, Transform, set_tta_
from tests.nets import ResidualNet, images, seeded

NUMBERS = torch.Generator().manual_seed(7)
HEAD = Head("head", torch.randn(10, 16, generator=NUMBERS), torch.randn(10, generator=NUMBERS))
PARTS = {
    "forge": ["forge"],
    "affine": ["affine"],
    "head": ["head"],
    "tta": ["tta"],
    "head and tta": ["head", "tta"],
    "affine and forge": ["affine", "forge"],
    "all": ["head", "affine", "forge", "tta"],
}


PROBABILITIES = TTA((Transform(), Transform(True, 1, -2)), "probabilities")


def changed(parts=("forge", "affine", "head", "tta"), tta=PROBABILITIES):
    model = seeded(ResidualNet)
    if {"forge", "affine"} & {*parts}:
        forge_(model, images(16), ratio=0.1 if "forge" in parts else 0.0)
    if "affine" in parts:
        for forge in forges(model).values():
            count = forge.channels
            forge.set_affine(torch.linspace(0.9, 1.1, count) / 3, torch.linspace(-0.1, 0.1, count) / 3)
    if "head" in parts:
        set_head_(model, HEAD)
    if "tta" in parts:
        set_tta_(model, tta)
    return model


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_a_saved_recipe_changes_a_fresh_model_to_the_same_bits(tmp_path, parts):
    model, x, fresh = changed(parts), images(4), seeded(ResidualNet)
    recipe = save_recipe(tmp_path / "recipe.json", model)
    loaded = load_recipe(tmp_path / "recipe.json")
    loaded.apply_(fresh)
    assert loaded == recipe == recipe_of(fresh)
    assert torch.equal(fresh(x), model(x))
    assert not torch.equal(fresh(x), seeded(ResidualNet)(x))
    assert recipe.parts == [str(PROBABILITIES) if part == "tta" else part for part in parts]
    remove_(fresh)
    assert torch.equal(fresh(x), seeded(ResidualNet)(x))
    assert weights_digest(fresh) == recipe.weights


@pytest.mark.parametrize(
    ("parts", "label"),
    [
        (["forge"], "forged"),
        (["affine"], "affine"),
        (["tta"], "mirror"),
        (["head", "tta"], "head + mirror"),
        (["forge", "tta"], "forge + mirror"),
    ],
)
def test_the_label_says_what_the_recipe_adds(parts, label):
    assert recipe_of(changed(parts, TTA.parse("mirror"))).label == label


def test_a_recipe_whose_masks_are_off_is_still_labelled_forged():
    model = changed(["forge"])
    set_ratio_(model, 0.0)
    assert recipe_of(model).label == "forged"


def test_recipes_with_other_parts_are_not_equal():
    recipe = recipe_of(changed())
    other_head = Head("head", HEAD.weight, HEAD.weight[:, 0])
    others = [recipe_of(changed(parts)) for parts in PARTS.values() if len(parts) < 4]
    others += [replace(recipe, head=other_head), replace(recipe, tta=TTA.parse("mirror"))]
    assert recipe == recipe_of(changed())
    assert all(other != recipe for other in others)


def test_a_model_that_changed_later_leaves_its_recipe_as_it_was():
    model = changed()
    recipe = recipe_of(model)
    with torch.no_grad():
        model.head.weight.zero_()
        forges(model)["block1.conv1"].scale.zero_()
    assert recipe == recipe_of(changed())
    assert recipe != recipe_of(model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_recipe_of_another_precision_gives_the_same_bits(tmp_path, dtype):
    model, fresh, x = changed().to(dtype), seeded(ResidualNet).to(dtype), images(2).to(dtype)
    recipe = save_recipe(tmp_path / "recipe.json", model)
    load_recipe(tmp_path / "recipe.json").apply_(fresh)
    assert torch.equal(fresh(x), model(x))
    assert recipe_of(fresh) == recipe


def test_a_recipe_of_format_1_forges_as_before(tmp_path):
    model, path, fresh = changed(["forge"]), tmp_path / "recipe.json", seeded(ResidualNet)
    save_recipe(path, model)
    fields = json.loads(path.read_text())
    del fields["tta"], fields["head"]
    for site in fields["sites"].values():
        del site["scale"], site["shift"]
    path.write_text(json.dumps({**fields, "format": 1}))
    loaded = load_recipe(path)
    loaded.apply_(fresh)
    assert loaded == recipe_of(model)
    assert (loaded.format, loaded.tta, loaded.head) == (2, None, None)
    assert torch.equal(fresh(images(4)), model(images(4)))


def floats(*values: float) -> str:
    return base64.b64encode(np.array(values, "<f4").tobytes()).decode()


def test_a_heads_numbers_are_base64_of_little_endian_float32(tmp_path):
    save_recipe(tmp_path / "recipe.json", changed(["head"]))
    head = json.loads((tmp_path / "recipe.json").read_text())["head"]
    assert HEAD.bias is not None
    assert head["layer"] == "head"
    assert head["bias"] == {"shape": [10], "float32": floats(*HEAD.bias.tolist())}
    assert head["weight"]["shape"] == [10, 16]


WEIGHT: dict[str, Any] = {"shape": [2, 1], "float32": floats(1, 2)}
WRONG_TENSORS: list[dict[str, Any]] = [
    {"float32": "no base64!"},
    {"float32": "é"},
    {"float32": f"!{floats(1, 2)}"},
    {"float32": "abc"},
    {"float32": 7},
    {"float32": floats(1, 2, 3)},
    {"float32": floats(1, 2)[:-4]},
    {"float32": floats(1, float("nan"))},
    {"float32": floats(1, float("inf"))},
    {"shape": [2]},
    {"shape": []},
    {"shape": 2},
    {"shape": "21"},
    {"shape": [2, 2]},
    {"shape": [-2, -1]},
    {"shape": [2, 1, 0]},
    {"shape": [2.0, 1]},
    {"shape": [True, 2]},
    {"shape": [10**9, 10**9]},
]


@pytest.mark.parametrize(
    "change",
    [
        {"tta": 5},
        {"tta": []},
        {"tta": {}},
        {"tta": {"mean": "logits"}},
        {"tta": {"transforms": [{}]}},
        {"tta": {"transforms": 5, "mean": "logits"}},
        {"tta": {"transforms": None, "mean": "logits"}},
        {"tta": {"transforms": [], "mean": "logits"}},
        {"tta": {"transforms": "mirror", "mean": "logits"}},
        {"tta": {"transforms": {"mirror": True}, "mean": "logits"}},
        {"tta": {"transforms": ["mirror"], "mean": "logits"}},
        {"tta": {"transforms": [{"mirror": 1}], "mean": "logits"}},
        {"tta": {"transforms": [{"down": 0.5}], "mean": "logits"}},
        {"tta": {"transforms": [{"up": 1}], "mean": "logits"}},
        {"tta": {"transforms": [{}, {}], "mean": "logits"}},
        {"tta": {"transforms": [{}], "mean": "median"}},
        {"tta": {"transforms": [{}], "mean": ["logits"]}},
        {"head": 5},
        {"head": "head"},
        {"head": {}},
        {"head": {"layer": "head", "weight": WEIGHT}},
        {"head": {"layer": "head", "bias": None}},
        {"head": {"layer": 3, "weight": WEIGHT, "bias": None}},
        {"head": {"layer": "head", "weight": None, "bias": None}},
        {"head": {"layer": "head", "weight": [1, 2], "bias": None}},
        {"head": {"layer": "head", "weight": {"shape": [2, 1]}, "bias": None}},
        {"head": {"layer": "head", "weight": WEIGHT, "bias": {"shape": [3], "float32": floats(1, 2, 3)}}},
        *({"head": {"layer": "head", "weight": {**WEIGHT, **wrong}, "bias": None}} for wrong in WRONG_TENSORS),
    ],
    ids=lambda change: json.dumps(change)[:90],
)
def test_damaged_tta_and_heads_are_named(tmp_path, change):
    path = tmp_path / "recipe.json"
    save_recipe(path, changed(["head", "tta"]))
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(RecipeError, match="is not a recipe that this version reads") as caught:
        load_recipe(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": None}, "scale and shift must have one value per channel"),
        ({"shift": None}, "scale and shift must have one value per channel"),
        ({"scale": [1.0] * 7, "shift": [1.0] * 7}, r"one value per channel each \(8\)"),
        ({"shift": [1.0] * 7}, r"one value per channel each \(8\)"),
        ({"scale": 1.0}, "scale must be a number or a list"),
        ({"scale": []}, "scale must be a number or a list"),
        ({"shift": [float("nan")] * 8}, "shift must be finite"),
        ({"scale": ["1"] * 8}, "scale must be finite"),
        ({"scale": [1e300] * 8}, "scale must be finite"),
    ],
)
def test_a_damaged_affine_part_is_named(tmp_path, change, message):
    path = tmp_path / "recipe.json"
    save_recipe(path, changed(["affine"]))
    fields = json.loads(path.read_text())
    fields["sites"]["block1.conv1"].update(change)
    path.write_text(json.dumps(fields))
    with pytest.raises(RecipeError, match=rf"site 'block1\.conv1': .*{message}"):
        load_recipe(path)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ResidualNet(classes=100), r"the head of 'head' has \(10, 16\).*the model's layer has \(100, 16\)"),
        (lambda: nn.Sequential(ResidualNet()), "linear layer 'head', and the model has nothing there"),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_a_recipe_with_the_head_of_another_model_is_refused_and_changes_nothing(build, message, strict):
    model = seeded(build)
    before = model(images(2))
    with pytest.raises(RecipeError, match=f"for another architecture: .*{message}"):
        recipe_of(changed(["head", "tta"])).apply_(model, strict=strict)
    assert not is_changed(model)
    assert torch.equal(model(images(2)), before)


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_a_model_with_any_part_is_changed_already(parts):
    model, recipe = changed(parts), recipe_of(changed(["tta"]))
    before = recipe_of(model)
    with pytest.raises(RecipeError, match=r"changed already \(.*\); call remove_ first"):
        recipe.apply_(model)
    assert recipe_of(model) == before


def test_a_recipe_that_fails_at_its_last_part_leaves_the_model_alone():
    model: Any = seeded(ResidualNet)
    model.forward = model.forward  # set on the object, where no class can add TTA
    with pytest.raises(SiteError, match="forward set on the object"):
        recipe_of(changed()).apply_(model)
    assert not is_changed(model)
    assert torch.equal(model.head.weight, seeded(ResidualNet).head.weight)


def test_a_model_that_nothing_was_added_to_has_no_recipe():
    with pytest.raises(SiteError, match="no forged functions"):
        recipe_of(seeded(ResidualNet))
