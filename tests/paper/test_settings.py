import json
import re
from dataclasses import replace
from importlib import metadata, resources

import pytest

from lipforge.attacks import parse_attack
from lipforge.errors import InputError
from lipforge.paper import PaperModel, load_paper, load_settings
from lipforge.paper.settings import Settings
from lipforge.records import from_builtins
from tests.models.published import PAPER_MODELS

SETTINGS = load_settings()

SECTIONS = {"CIFAR-10": "8/255", "CIFAR-100": "8/255", "ImageNet": "4/255"}
"""The linf tables of RobustBench's README, by data set."""

EXTERNAL = {"Bai2024 WRN-70-16", "Bai2024 ConvNeXtV2-L + Swin-L", "CIFAR-100 Wang2023 WRN-70-16"}
"""Where the README lists another attack than AutoAttack, a stronger one: footnotes of RobustBench's model_info."""


def test_every_published_number_has_its_model_attack_and_table():
    for row in load_paper():
        assert SETTINGS.model(row.dataset, row.model).dataset == row.dataset
        assert row.table in SETTINGS.tables
        assert row.attack == "clean" or row.attack in SETTINGS.attacks
        assert row.variant == "" or row.variant in SETTINGS.variants


def test_the_models_are_those_whose_sites_are_tested():
    specs = {model.spec for model in SETTINGS.models}
    assert {model.spec for model in PAPER_MODELS} <= specs
    assert len(specs) == len(SETTINGS.models)


@pytest.mark.parametrize("model", SETTINGS.models, ids=lambda model: f"{model.dataset} {model.model}")
def test_a_base_that_differs_from_robustbench_has_a_note(model: PaperModel):
    printed = [
        row.accuracy == (model.clean if row.attack == "clean" else model.autoattack)
        for row in load_paper()
        if (row.dataset, row.model, row.ratio) == (model.dataset, model.model, "0") and row.attack in ("clean", "AA")
    ]
    assert printed
    assert bool(model.note) == (not all(printed)) or "there is no WRN-70-16" in model.note


@pytest.mark.zoo
@pytest.mark.parametrize("model", SETTINGS.models, ids=lambda model: f"{model.dataset} {model.model}")
def test_the_figures_of_a_model_are_those_of_robustbench(model: PaperModel):
    readme = str(metadata.metadata("robustbench").json["description"])
    dataset = readme.split(f"\n### {model.dataset}\n")[1]
    table = dataset.split(f"#### Linf, eps={SECTIONS[model.dataset]}")[1].split("\n#")[0]
    name = re.escape(model.spec.rpartition("/")[2])
    (found,) = re.findall(rf"\*\*{name}\*\*.*?(\d+\.\d+)%.*?(\d+\.\d+)%", table)
    clean, robust = map(float, found)
    assert clean == model.clean
    if EXTERNAL & {model.model, f"{model.dataset} {model.model}"}:
        assert model.autoattack - 0.5 < robust < model.autoattack
    else:
        assert robust == model.autoattack


@pytest.mark.parametrize("text", [*SETTINGS.attacks.values(), *SETTINGS.stand_in.attacks.values()])
def test_every_attack_can_be_read(text):
    assert parse_attack(text)


def test_a_damaged_settings_file_is_named():
    values = json.loads(resources.files("lipforge.paper").joinpath("settings.json").read_text())
    values["models"][0]["clean"] = "high"
    with pytest.raises(InputError, match=r"settings.json: 'models' 0: 'clean' must be a number"):
        from_builtins(Settings, values, "settings.json")


def test_a_model_needs_the_images_of_its_data_set():
    with pytest.raises(InputError, match="RST-AWP is on CIFAR-10, which has no data"):
        replace(SETTINGS, datasets={})


def test_an_unknown_table_gets_the_names_of_all():
    with pytest.raises(InputError, match=r"no table or figure '1c'; there are 1a, .*, eigenvalues"):
        SETTINGS.check("1c")
