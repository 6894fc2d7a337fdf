import json

import pytest

from lipforge.analysis import analyse
from lipforge.attacks import PGD
from lipforge.data import load_data
from lipforge.forge import forged, load_recipe
from lipforge.models import load_model
from lipforge.records import read_json
from lipforge.results import record
from lipforge.types import Threat
from tests.schemas import result_of

SMALL = ("--data", "cifar10-sample", "--images", 4, "--spectral", 1, "--attack", "pgd:steps=2")


@pytest.fixture
def forged_model(run, model_file):
    spec = f"{model_file}:build"
    assert run("forge", spec, "--data", "cifar10-sample:train", "--limit", 16, "--ratio", "0.3").code == 0
    return (spec, "--recipe", "recipe.json")


def test_the_json_is_the_analysis_of_the_library(run, forged_model):
    ended = run("analyse", *forged_model, *SMALL, "--json", "--run", "r")
    assert ended.code == 0
    assert json.loads(ended.out)["wrote"] == ["r/results/analysis.json"]
    printed = result_of(ended.out)
    model, data = load_model(forged_model[0]), load_data("cifar10-sample", limit=4)
    load_recipe("recipe.json").apply_(model)
    x, y = data.batch(range(4))
    expected = analyse(
        model,
        data,
        PGD(steps=2).run(forged(model), x, y, threat=Threat("linf", "8/255")).images,
        spectral_images=1,
        model_name=forged_model[0],
        data_name=data.name,
        attack="pgd:steps=2 linf 8/255 on the forged model, seed 0",
    )
    assert printed == json.loads(json.dumps(record(expected)))
    assert read_json("r/results/analysis.json") == printed


def test_the_tables_name_every_site_and_say_what_the_product_is_not(run, forged_model):
    ended = run("analyse", *forged_model, *SMALL)
    assert ended.code == 0
    assert ended.out.count("conv1") == ended.out.count("conv2") == 3
    assert "It does not bound the network" in ended.out.replace("\n", " ")
    assert "the mask jumps at 2 sites" in ended.err


def test_no_attack_and_plots(run, forged_model, tmp_path):
    pytest.importorskip("matplotlib")
    ended = run("analyse", *forged_model, *SMALL[:-1], "none", "--plot", "plots")
    assert ended.code == 0
    assert "gain |out'" not in ended.out
    assert "wrote plots/ratio.png" in ended.out
    assert (tmp_path / "plots" / "ratio.png").stat().st_size > 1000


def test_bad_input_is_named(run, forged_model):
    assert "attack must be one of" in run("analyse", *forged_model, "--attack", "magic").err
    assert "norm must be one of" in run("analyse", *forged_model, "--norm", "l7").err
