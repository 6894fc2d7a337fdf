import json
import os
import subprocess
import sys

import pytest

from lipforge.certification import certify
from lipforge.data import load_data
from lipforge.forge import forged, load_recipe, plain, set_ratio_
from lipforge.models import load_model
from lipforge.records import read_json, to_builtins
from lipforge.results import FORMAT
from lipforge.statistics import paired
from tests.schemas import results_of

SMALL = ("--data", "cifar10-sample", "--n0", 10, "--n", 60, "--alpha", 0.05, "--skip", 100)


@pytest.fixture
def forged_model(run, model_file):
    """A model's name and its recipe."""
    spec = f"{model_file}:build"
    assert run("forge", spec, "--data", "cifar10-sample:train", "--limit", 16, "--ratio", "0.3").code == 0
    return spec


def without_seconds(result):
    return {name: value for name, value in to_builtins(result).items() if name != "seconds"}


def test_base_and_forged_have_the_numbers_of_the_library(run, forged_model):
    ended = run("certify", forged_model, "--recipe", "recipe.json", *SMALL, "--json")
    assert (ended.code, ended.err) == (0, "")
    found = results_of(ended.out)
    model = load_model(forged_model)
    load_recipe("recipe.json").apply_(model)
    settings = {"n0": 10, "n": 60, "alpha": 0.05, "skip": 100, "model_name": forged_model}
    for one, view, label in zip(found, (plain(model), forged(model)), ("base", "forged"), strict=True):
        assert (one.pop("kind"), one.pop("format")) == ("certify", FORMAT)
        expected = certify(view, load_data("cifar10-sample"), **settings, label=label)
        assert without_seconds(one) == without_seconds(expected)


def test_the_table_has_counts_intervals_and_images_gained_and_lost(run, forged_model):
    ended = run("certify", forged_model, "--recipe", "recipe.json", *SMALL, "--radii", "0,0.1", "--run", "r")
    assert ended.code == 0
    one, other = (read_json(f"r/results/certify__{label}__sigma-0.25__n-60.json") for label in ("base", "forged"))
    certified = [[row["prediction"] == row["label"] for row in result["images"]] for result in (one, other)]
    both = paired(*certified)
    assert f"{100 * both.difference:+.1f} [" in ended.out
    assert f"{both.gained} / {both.lost}" in ended.out
    assert "/5 " in ended.out
    assert "Each image's claim holds with probability 0.95." in ended.out
    assert "wrote r/results/certify__forged__sigma-0.25__n-60.json" in ended.out
    assert read_json("r/results/certify__base__sigma-0.25__n-60.json")["kind"] == "certify"
    assert "5 images say little" in ended.err


def test_the_same_command_again_asks_nothing_and_another_is_refused(run, forged_model):
    command = ("certify", forged_model, *SMALL, "--run", "r")
    first = run(*command)
    stamp = os.stat("r/shards/certify__base__sigma-0.25__n-60/0000.json").st_mtime_ns
    assert run(*command).out == first.out
    assert os.stat("r/shards/certify__base__sigma-0.25__n-60/0000.json").st_mtime_ns == stamp
    ended = run(*command, "--alpha", 0.01)
    assert ended.code == 2
    assert "alpha was 0.05, now 0.01" in ended.err


def test_the_estimate_asks_for_little_and_writes_nothing(run, forged_model, tmp_path):
    ended = run(
        "certify", forged_model, "--recipe", "recipe.json", "--data", "cifar10-sample", "--estimate", "--run", "r"
    )
    assert ended.code == 0
    assert "base: 500 images, 50,050,000 forward passes, about" in ended.out
    assert "in all about" in ended.out
    assert not (tmp_path / "r").exists()


def test_the_estimate_as_json_is_one_object_with_a_cost_for_each_view(run, forged_model):
    ended = run("certify", forged_model, "--recipe", "recipe.json", *SMALL, "--estimate", "--json")
    printed = json.loads(ended.out)
    assert [(cost["label"], cost["kind"]) for cost in results_of(ended.out)] == [
        ("base", "certify_cost"),
        ("forged", "certify_cost"),
    ]
    assert printed["seconds"] == sum(cost["seconds"] for cost in printed["results"])


def test_a_ratio_and_random_images_reach_the_library(run, forged_model):
    given = ("--recipe", "recipe.json", "--ratio", "0.1", "--limit", 3, "--data-seed", 5)
    ended = run("certify", forged_model, *SMALL[:-2], *given, "--json")
    model = load_model(forged_model)
    load_recipe("recipe.json").apply_(model)
    set_ratio_(model, 0.1)
    images = load_data("cifar10-sample", limit=3, seed=5)
    expected = certify(forged(model), images, n0=10, n=60, alpha=0.05)
    found = json.loads(ended.out)["results"][1]
    assert found["images"] == to_builtins(expected.images)


@pytest.mark.parametrize(
    ("options", "match"),
    [(["--sigma", "-1"], "sigma must be"), (["--radii", "0,x"], "radii must be"), (["--alpha", "2"], "alpha must lie")],
)
def test_bad_input_is_named(run, model_file, options, match):
    ended = run("certify", f"{model_file}:build", *SMALL, *options)
    assert ended.code == 2
    assert match in ended.err


@pytest.mark.slow
def test_two_processes_make_the_claims_of_one_and_only_the_first_prints(run, environment, model_file):
    """`-m -- lipforge`: without the dashes torchrun takes --run and --n for its own options."""
    arguments = ["certify", f"{model_file}:build", *map(str, SMALL), "--json"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "--", "lipforge", *arguments, "--run", "two"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    (shared,), (alone,) = (json.loads(out)["results"] for out in (ended.stdout, run(*arguments).out))
    assert without_seconds(shared) == without_seconds(alone)


@pytest.mark.parametrize(("sigma", "warned"), [("0.5", True), ("0.02", False)])
def test_a_sigma_that_the_model_was_not_trained_for_is_named_before_the_work(run, sigma, warned):
    given = ("--data", "cifar10-sample", "--limit", 24, "--sigma", sigma, "--n", 10, "--estimate")
    ended = run("certify", "cifar10-resnet", *given)
    assert ended.code == 0, ended.err
    assert (
        f"under Gaussian noise of sigma {sigma} (24 images, 4 draws each); it was evidently not" in ended.err
    ) == warned
