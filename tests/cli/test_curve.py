import json
import sys

import pytest

from lipforge.data import load_data
from lipforge.evaluation import curve
from lipforge.models import load_model
from tests.cli.test_search import DATA, recipe
from tests.schemas import problems

__all__ = ["recipe"]

SHORT = (*DATA, "--attack", "fmn:steps=4", "--eps", "32/255")


def test_the_json_has_the_curve_of_the_library(run):
    ended = run("curve", "cifar10-resnet", *SHORT, "--json")
    assert ended.code in (0, 4), ended.err
    (found,) = json.loads(ended.out)["results"]
    data = load_data("cifar10-sample", limit=12, seed=3)
    expected = curve(load_model("cifar10-resnet"), data, "linf", eps="32/255", attack="fmn:steps=4")
    assert problems(found, "curve") == []
    assert found["smallest_eps"] == list(expected.smallest_eps)
    assert found["label"] == "base"


def test_base_and_forged_are_shown_compared_drawn_and_kept(run, recipe, tmp_path):
    given = (*SHORT, "--recipe", recipe, "--run", "runs/c", "--plot", "curve.svg")
    ended = run("curve", "cifar10-resnet", *given)
    assert ended.code in (0, 4), ended.err
    assert "forged against base: area" in ended.out
    assert "paired, each eps by itself: 4/255" in ended.out
    assert (tmp_path / "curve.svg").read_text().startswith("<?xml")
    written = {path.name.partition("__")[0] for path in (tmp_path / "runs/c/results").iterdir()}
    assert written == {"curve", "curves"}
    assert len(list((tmp_path / "runs/c/results").glob("curve__*.json"))) == 2
    again = run("curve", "cifar10-resnet", *given, "--json")
    kinds = [one["kind"] for one in json.loads(again.out)["results"]]
    assert kinds == ["curve", "curve", "curve_comparison"]
    assert "2 finished shards" in again.err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--norm", "l3"), "norm must be one of linf, l2, l1"),
        (("--eps", "8/255,2/255"), "eps must be one radius, where the curve ends"),
        (("--eps", "0"), "eps must be above 0"),
        (("--plot", "curve.jpg"), "the plot must be saved as .png, .svg or .pdf"),
        (("--attack", "ddn"), "ddn knows the norm l2, got linf"),
    ],
)
def test_wrong_use_is_explained(run, given, message):
    ended = run("curve", "cifar10-resnet", *DATA, *given)
    assert ended.code == 2
    assert message in ended.err


def test_a_plot_without_matplotlib_is_refused_before_any_work(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("lipforge.load_model", lambda *given, **more: pytest.fail("it went to work"))
    ended = run("curve", "cifar10-resnet", *SHORT, "--plot", "x.svg", "--run", "runs/c")
    assert (ended.code, ended.out) == (2, "")
    assert "this needs the package 'matplotlib': pip install 'lipforge[plots]'" in ended.err
    assert not (tmp_path / "x.svg").exists()
    assert not (tmp_path / "runs").exists()


def test_an_attack_that_stops_early_is_refused_before_a_run_is_made(run, tmp_path):
    ended = run("curve", "cifar10-resnet", "--data", "cifar10-sample", "--attack", "pgd", "--run", tmp_path / "run")
    assert ended.code == 2
    assert "it stops at its first success" in " ".join(ended.err.split())
    assert not (tmp_path / "run").exists()
