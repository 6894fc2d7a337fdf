import json
from pathlib import Path

import numpy as np
import pytest
import torch

from lipforge.cli.improve import _audit_command
from lipforge.cli.options import ModelOptions, RunOptions
from lipforge.forge import load_recipe
from lipforge.results import from_record
from lipforge.types import Threat
from tests.improvement import lopsided
from tests.improvement.lopsided import Lopsided, symmetric
from tests.schemas import result_of

SMALL = ("--eps", "4/255", "--calibrate", 110, "--validate", 120, "--max-cost", 2, "--parts", "tta")


@pytest.fixture
def data(tmp_path):
    x, y = symmetric(240)
    np.savez(tmp_path / "images.npz", images=x.numpy(), labels=y.numpy())
    return f"npz:{tmp_path / 'images.npz'}"


@pytest.fixture
def improved(run, data, tmp_path):
    """The command on the classifier whose gain is known."""

    def improve(*more):
        spec = f"{Path(lopsided.__file__)}:Lopsided"
        return run("improve", spec, "--data", data, *SMALL, *more)

    return improve


def test_the_table_the_reason_the_recipe_and_the_next_command_are_there(improved, tmp_path):
    ended = improved("--run", tmp_path / "run", "--out", tmp_path / "better.json")
    assert ended.code == 0, ended.err
    assert "mirror: +" in ended.out
    assert "2 forward passes per image" in ended.out
    assert f"wrote {tmp_path / 'better.json'}" in ended.out
    assert f"wrote {tmp_path / 'run' / 'results' / 'improve__linf-4over255.json'}" in ended.out
    assert "next, with --data and other options for test images: lipforge audit" in ended.out
    assert f"--recipe {tmp_path / 'better.json'} --norm linf --eps 4/255 --run {tmp_path / 'run'}" in ended.out
    model, (x, _) = Lopsided(), symmetric(8)
    load_recipe(tmp_path / "better.json").apply_(model)
    assert torch.allclose(model(x + 0.01), (Lopsided()(x + 0.01) + Lopsided()((x + 0.01).flip(-1))) / 2, atol=1e-5)


def test_the_next_command_names_all_options_that_give_the_model():
    models = ModelOptions("timm:x", "w.pt", weights_dir="all of them", no_weights=True, classes=7, device="cpu")
    assert _audit_command(models, RunOptions("runs/x"), Threat("linf", "8/255"), "b.json") == (
        "lipforge audit timm:x --no-weights --weights w.pt --weights-dir 'all of them' --classes 7 --device cpu "
        "--recipe b.json --norm linf --eps 8/255 --run runs/x"
    )


def test_the_json_is_the_result_with_the_recipe(improved):
    ended = improved("--json")
    recipe = json.loads(ended.out)["recipe"]
    assert recipe["tta"]["transforms"][1]["mirror"] is True
    assert from_record(result_of(ended.out), "stdout").chosen == "mirror"
    assert recipe["format"] == 2


def test_nothing_writes_no_recipe_and_says_so(improved, tmp_path):
    ended = improved("--tta", "diagonals", "--max-cost", 3, "--out", tmp_path / "better.json")
    assert ended.code == 0, ended.err
    assert "nothing: " in ended.out
    assert "next, " not in ended.out
    assert ended.err == "note: no recipe was written: the answer is nothing, so there is none to apply or to audit\n"
    assert not (tmp_path / "better.json").exists()


@pytest.mark.parametrize("json", [(), ("--json",)], ids=["table", "json"])
def test_a_recipe_of_an_earlier_call_is_not_taken_for_the_answer_nothing(improved, tmp_path, json):
    assert improved("--out", "better.json").code == 0
    earlier = (tmp_path / "better.json").read_bytes()
    ended = improved("--tta", "diagonals", "--max-cost", 3, "--out", "better.json", *json)
    assert ended.code == 0, ended.err
    assert "no recipe was written" in ended.err
    assert "better.json of an earlier call is now better.json.old" in ended.err
    assert not (tmp_path / "better.json").exists()
    assert (tmp_path / "better.json.old").read_bytes() == earlier


def test_a_recipe_that_nobody_wrote_is_explained(run):
    ended = run("audit", "cifar10-resnet", "--data", "cifar10-sample", "--recipe", "better.json")
    assert ended.code == 2
    assert "no file better.json; `lipforge forge` writes a recipe, `lipforge improve` only if it finds" in ended.err


@pytest.mark.filterwarnings("default")
def test_test_images_are_warned_of_in_one_line(improved, data, tmp_path):
    (tmp_path / "images.npz").rename(tmp_path / "test.npz")
    ended = improved("--data", data.replace("images.npz", "test.npz"))
    assert ended.code == 0, ended.err
    assert f"note: going by its name, npz:{tmp_path / 'test.npz'} holds test images." in ended.err
    assert [line.startswith("note: ") for line in ended.err.splitlines()] == [
        True,
        True,
    ]  # and that nothing was written


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--parts", "tta,hat"), "parts must be of tta, head, affine, forge, got 'hat'"),
        (("--validate", 1000), "too few for 1000"),
        (("--tta", "mirror x shifts"), "above max_cost 2"),
        (("--min-clean", 680), "min-clean is in percent, from 0 to 100, got 680"),
    ],
)
def test_wrong_use_is_explained(improved, options, message):
    ended = improved(*options)
    assert ended.code == 2
    assert message in ended.err
    assert "Traceback" not in ended.err


def test_a_share_for_the_clean_accuracy_is_refused(improved):
    ended = improved("--min-clean", "0.68")
    assert ended.code == 2
    assert "min-clean is in percent, got 0.68; for a share of 0.68 give 68" in " ".join(ended.err.split())


def test_the_recipe_is_kept_in_the_run_unless_said_otherwise(improved, tmp_path):
    ended = improved("--run", tmp_path / "run")
    assert f"wrote {tmp_path / 'run' / 'recipe.json'}" in ended.out
    assert load_recipe(tmp_path / "run" / "recipe.json").tta is not None
    assert "no recipe was written: --out says where to" in improved().err
