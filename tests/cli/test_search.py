import json

import pytest

from lipforge.attacks import PGD
from lipforge.data import load_data
from lipforge.forge import forge_, load_recipe, save_recipe
from lipforge.models import load_model
from lipforge.records import to_builtins
from lipforge.results import record
from lipforge.search import choose_ratio
from lipforge.types import Threat
from tests.schemas import result_of

DATA = ("--data", "cifar10-sample", "--limit", 12, "--data-seed", 3)
ATTACK = ("--attack", "pgd:steps=2", "--eps", "8/255")


@pytest.fixture
def recipe(tmp_path):
    model = load_model("cifar10-resnet")
    forge_(model, load_data("cifar10-sample:train", limit=32), ratio=2**-7)
    save_recipe(tmp_path / "recipe.json", model)
    return tmp_path / "recipe.json"


def without_seconds(value):
    if isinstance(value, dict):
        return {key: without_seconds(item) for key, item in value.items() if key != "seconds"}
    return [without_seconds(item) for item in value] if isinstance(value, list) else value


def test_the_json_is_the_result_of_the_library(run, recipe):
    ended = run("search", "cifar10-resnet", "--recipe", recipe, *DATA, *ATTACK, "--ratios", "2^-8,2^-6", "--json")
    assert ended.code == 0, ended.err
    model = load_model("cifar10-resnet")
    load_recipe(recipe).apply_(model)
    expected = choose_ratio(
        model,
        load_data("cifar10-sample", limit=12, seed=3),
        threat=Threat("linf", "8/255"),
        attack=PGD(steps=2),
        ratios=(2**-8, 2**-6),
    )
    assert without_seconds(result_of(ended.out)) == without_seconds(to_builtins(record(expected)))


def test_the_table_the_reason_the_plot_the_recipe_and_the_run_are_there(run, recipe, tmp_path):
    files = ("--plot", "out/tradeoff.svg", "--out", "chosen.json", "--run", "runs/s")
    ended = run("search", "cifar10-resnet", "--recipe", recipe, *DATA, *ATTACK, "--metric", "non-adaptive", *files)
    assert ended.code == 0, ended.err
    assert "pgd:steps=2 linf 8/255, non-adaptive, cifar10-sample" in ended.out
    assert "chose " in ended.out
    for name in ("out/tradeoff.svg", "chosen.json", "runs/s/results/search.json"):
        assert f"wrote {name}" in ended.out
        assert (tmp_path / name).exists()
    kept = json.loads((tmp_path / "runs/s/results/search.json").read_text())
    assert load_recipe(tmp_path / "chosen.json").ratio == kept["chosen"]
    picture = (tmp_path / "out/tradeoff.svg").read_text()
    assert picture.startswith("<?xml")
    assert "note: the choice was made on these images" in ended.err
    assert "some images may be in both" not in ended.err
    (kept,) = json.loads((tmp_path / "runs/s/environment.json").read_text())["environments"]
    assert kept["command"].startswith("lipforge search cifar10-resnet --recipe")


def test_validation_images_of_the_set_that_calibrated_are_noted(run, recipe):
    given = ("--data", "cifar10-sample:train", "--limit", 4, "--data-seed", 1, "--attack", "fgsm")
    ended = run("search", "cifar10-resnet", "--recipe", recipe, *given)
    assert ended.code == 0, ended.err
    words = " ".join(ended.err.split())
    assert "come from cifar10-sample:train/first 32 and the search uses cifar10-sample:train/random 4" in words


def test_the_default_attack_is_fast_as_in_evaluate(run, recipe):
    given = ("--data", "cifar10-sample", "--limit", 2, "--ratios", "2^-7", "--json")
    ended = run("search", "cifar10-resnet", "--recipe", recipe, *given)
    assert result_of(ended.out)["attack"] == "fast"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--plot", "tradeoff.gif"], "must be saved as .png, .svg or .pdf, got tradeoff.gif"),
        (["--ratios", "2^-8,much"], "ratios must be a number"),
        (["--metric", "both"], "metric must be non-adaptive or union, got 'both'"),
        (["--metric", "plain"], "metric must be non-adaptive or union, got 'plain'"),
        (["--stages", "--group", "layer1.*"], "--group or --stages, not both"),
        (["--attack", "nothing"], "attack must be one of"),
    ],
)
def test_wrong_use_is_explained(run, recipe, options, message):
    ended = run("search", "cifar10-resnet", "--recipe", recipe, *DATA, *ATTACK, *options)
    assert ended.code == 2
    assert message in ended.err
