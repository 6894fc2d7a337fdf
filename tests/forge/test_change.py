"""Which change a result says it is about: mask, ratio, TTA and the recipe's digest, however the model got them."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import lipforge as lf
from lipforge.evaluation import estimate, sweep, transfer
from lipforge.forge.change import change_of as of_forge
from lipforge.results import RESULTS, Change, from_record, record
from lipforge.runs import change_of
from tests.auditing.quick import QUICK
from tests.nets import ResidualNet

THREAT = lf.Threat("linf", "2/255")


@pytest.fixture
def images():
    return torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 4


@pytest.fixture
def model(images):
    torch.manual_seed(0)
    made = ResidualNet().eval()
    lf.forge_(made, images[0], ratio=0.25)
    return made


def test_a_model_as_it_is_and_its_plain_view_have_no_change(model):
    assert change_of(ResidualNet().eval()) is None
    assert change_of(lf.plain(model)) is None
    assert change_of(lambda x: x) is None
    lf.set_mode_(model, "plain")
    assert change_of(model) is None


def test_the_change_has_the_mask_the_ratio_and_the_digest_of_the_recipe(model):
    recipe = lf.recipe_of(model)
    expected = Change("forged", mask="Step()", ratio=0.25, recipe=recipe.digest)
    assert [change_of(view) for view in (model, lf.forged(model), lf.straight_through(model))] == [expected] * 3
    assert of_forge(model) == expected
    assert len(recipe.digest) == 64


def test_a_file_and_the_model_it_was_applied_to_have_one_digest(model, tmp_path):
    saved = lf.save_recipe(tmp_path / "r.json", model)
    again = ResidualNet().eval()  # other weights
    with pytest.warns(UserWarning, match="calibrated on other weights"):
        lf.load_recipe(tmp_path / "r.json").apply_(again)
    assert lf.load_recipe(tmp_path / "r.json").digest == saved.digest == change_of(again).recipe
    values = json.loads((tmp_path / "r.json").read_text())
    first = next(iter(values["sites"].values()))
    first["bound"] = 0.1  # no float32
    values |= {"lipforge": "0.0.1", "images_seen": 3}
    (tmp_path / "edited.json").write_text(json.dumps(values))
    edited, other = lf.load_recipe(tmp_path / "edited.json"), ResidualNet().eval()
    with pytest.warns(UserWarning, match="calibrated on other weights"):
        edited.apply_(other)
    assert change_of(other).recipe == edited.digest != saved.digest


def test_ratios_that_differ_are_listed_and_make_another_digest(model):
    before, names = change_of(model), list(lf.forges(model))
    lf.set_ratio_(model, {names[0]: 0.5})
    found = change_of(model)
    assert (found.ratio, found.ratios) == (None, {**dict.fromkeys(names, 0.25), names[0]: 0.5})
    assert found.recipe != before.recipe
    lf.set_ratio_(model, 0.25)
    assert change_of(model) == before


def test_tta_and_a_head_are_changes_too(images):
    model = ResidualNet().eval()
    lf.set_tta_(model, "mirror")
    mirrored = change_of(model)
    assert (mirrored.label, mirrored.tta, mirrored.mask, mirrored.ratio) == ("mirror", "mirror", None, None)
    assert mirrored.recipe == lf.recipe_of(model).digest
    lf.set_tta_(model, None)
    lf.set_head_(model, lf.Head("head", model.head.weight.detach() + 1, model.head.bias.detach()))
    assert change_of(model).label == "head"
    assert change_of(model).recipe != mirrored.recipe


def test_a_change_inside_a_wrapper_is_found(model):
    assert change_of(nn.Sequential(nn.Identity(), model)).ratio == 0.25
    lf.set_tta_(model, "mirror")
    assert change_of(nn.Sequential(nn.Identity(), model)) == change_of(model)


def test_several_masks_are_a_change_without_a_recipe(model):
    next(iter(lf.forges(model).values())).mask = lf.Piecewise(0.5)
    assert change_of(model) == Change("changed", mask="Piecewise(d=0.5), Step()")


def test_every_measurement_says_which_change_it_is_about(model, images):
    base, forged, attack = lf.plain(model), lf.forged(model), lf.FGSM()
    expected = change_of(model)
    assert lf.evaluate(base, images, attack, THREAT).change is None
    assert lf.evaluate(forged, images, attack, THREAT).change == expected
    assert lf.clean_accuracy(forged, images).change == expected
    assert estimate(forged, images, attack, THREAT, probe=2).change == expected
    rows = sweep({"base": base, "forged": forged}, images, [attack], [THREAT]).rows
    assert [row.change for row in rows] == [None, expected]
    moved = transfer(base, forged, images, attack, THREAT, refine=0)
    assert (moved.source_change, moved.target_change) == (None, expected)
    assert lf.certify(forged, images, n0=2, n=4, alpha=0.5).change == expected
    assert lf.analyse(model, images).change == expected


def test_a_search_an_audit_and_a_pair_say_which_changes_they_compared(model, images):
    found = lf.choose_ratio(model, images, threat=THREAT, ratios=[0.25, 0.5], attack=lf.FGSM(), all_ratios=True)
    assert [score.change and score.change.ratio for score in found.scores] == [None, 0.25, 0.5]
    assert found.scores[1].change == change_of(model)
    report = lf.audit(model, images, THREAT, plan=QUICK)
    assert (report.base_change, report.candidate_change) == (None, change_of(model))
    turned = lf.audit(lf.forged(model), lf.plain(model), images, THREAT, plan=QUICK)
    assert (turned.base_change, turned.candidate_change) == (change_of(model), None)


def test_a_result_without_the_field_loads(model, images):
    result = lf.evaluate(lf.forged(model), images, lf.FGSM(), THREAT)
    values = json.loads(json.dumps(record(result)))
    assert from_record(values, "x") == result
    del values["change"]
    assert from_record(values, "x") == replace(result, change=None)
    assert values["format"] == 2
    assert all("format" not in kind.__annotations__ for kind in RESULTS.values())
