import json

import pytest

from tests.schemas import problems

DATA = ("--data", "cifar10-sample", "--limit", 12, "--attack", "pgd:steps=2")
NET = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 8, 8), nn.ReLU(), nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)
    )
"""


@pytest.fixture
def recipe(tmp_path, run):
    (tmp_path / "net.py").write_text(NET)
    given = ("--data", "cifar10-sample:train", "--limit", 32, "--out", "recipe.json")
    assert run("forge", "net.py:build", *given).code == 0
    return "recipe.json"


def test_base_and_forged_are_bracketed_compared_and_kept(run, recipe, tmp_path):
    given = (*DATA, "--eps", "0.1/255", "--recipe", recipe, "--run", "runs/b")
    ended = run("bracket", "net.py:build", *given)
    assert ended.code == 0, ended.err
    assert "certified <= truth <= attacked on these images" in ended.out
    assert "forged against base: between" in ended.out
    again = run("bracket", "net.py:build", *given, "--json")
    found = json.loads(again.out)["results"]
    assert [one["kind"] for one in found] == ["bracket", "bracket", "bracket_comparison"]
    assert [problem for one in found for problem in problems(one, one["kind"])] == []
    names = {path.name.partition("__")[0] for path in (tmp_path / "runs/b/results").iterdir()}
    assert names == {"bracket", "brackets", "base", "forged"}


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        ("cifar10-vit", (), "has no bound: layer norm, attention, GELU are not supported. Bounds exist for conv,"),
        ("net.py:build", ("--eps", "0"), "eps must be above 0"),
        ("net.py:build", ("--method", "ibp"), "method must be one of crown, crown-ibp"),
        ("net.py:build", ("--eps", "2/255,8/255"), "eps must be a number"),
    ],
)
def test_wrong_use_is_explained(run, recipe, model, given, message):
    ended = run("bracket", model, *DATA, *given)
    assert ended.code == 2
    assert message in " ".join(ended.err.split())
