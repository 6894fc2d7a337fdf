import json

import pytest

from lipforge.corruptions import corrupt
from lipforge.data import load_data
from lipforge.models import load_model
from tests.cli.test_search import DATA, recipe
from tests.schemas import problems

__all__ = ["recipe"]

SHORT = (*DATA, "--corruptions", "fog,contrast", "--severities", "5,1")


def test_the_json_has_the_result_of_the_library(run):
    ended = run("corrupt", "cifar10-resnet", *SHORT, "--json")
    assert ended.code == 0, ended.err
    (found,) = json.loads(ended.out)["results"]
    data = load_data("cifar10-sample", limit=12, seed=3)
    expected = corrupt(load_model("cifar10-resnet"), data, corruptions=["fog", "contrast"], severities=[1, 5])
    assert problems(found, "corrupt") == []
    assert [cell["right"] for cell in found["cells"]] == [cell.right for cell in expected.cells]
    assert (found["label"], found["severities"]) == ("base", [1, 5])


def test_base_and_forged_are_shown_compared_drawn_and_kept(run, recipe, tmp_path):
    given = (*SHORT, "--recipe", recipe, "--run", "runs/c", "--plot", "corruptions.svg")
    ended = run("corrupt", "cifar10-resnet", *given)
    assert ended.code == 0, ended.err
    assert "forged against base: corrupted" in ended.out
    assert "forged against base: % correct, each corruption by itself" in ended.out
    assert "mean error" in ended.out
    assert (tmp_path / "corruptions.svg").read_text().startswith("<?xml")
    written = sorted(path.name.partition("__")[0] for path in (tmp_path / "runs/c/results").iterdir())
    assert written == ["corrupt", "corrupt", "corrupted"]
    again = run("corrupt", "cifar10-resnet", *given, "--json")
    assert [one["kind"] for one in json.loads(again.out)["results"]] == ["corrupt", "corrupt", "corrupt_comparison"]
    assert "2 finished shards" in again.err


def test_frost_is_said_not_to_be_the_published_one(run):
    ended = run("corrupt", "cifar10-resnet", *DATA, "--corruptions", "frost", "--severities", "1")
    assert "frost is not the published one" in ended.err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--corruptions", "fog,rain"), "corruptions must be among gaussian_noise"),
        (("--severities", "0"), "severities must be among 1, 2, 3, 4, 5, got 0"),
        (("--severities", "high"), "with commas between them, got 'high'"),
        (("--plot", "curve.jpg"), "the plot must be saved as .png, .svg or .pdf"),
        (("--published", "nowhere"), "which is no folder"),
    ],
)
def test_wrong_use_is_explained(run, given, message):
    ended = run("corrupt", "cifar10-resnet", *DATA, *given)
    assert ended.code == 2
    assert message in " ".join(ended.err.split())
