from tests.cli.test_search import ATTACK, DATA, recipe
from tests.schemas import results_of

__all__ = ["recipe"]


def test_both_directions_are_measured_and_kept(run, recipe, tmp_path):
    given = ("transfer", "cifar10-resnet", "--recipe", recipe, *DATA, *ATTACK, "--refine", 2, "--run", "runs/t")
    ended = run(*given, "--json")
    assert ended.code == 0, ended.err
    there, back = results_of(ended.out)
    assert (there["source"], there["target"], there["kind"]) == ("base", "forged", "transfer")
    assert (back["source"], back["target"], back["refine"]) == ("forged", "base", 2)
    shown = run(*given)
    for name in ("base-to-forged", "forged-to-base"):
        assert f"wrote runs/t/results/transfer__{name}__pgd-steps=2__linf-8over255.json" in shown.out
        assert (tmp_path / f"runs/t/results/transfer__{name}__pgd-steps=2__linf-8over255.json").exists()
    assert f"{there['transferred']} of {there['shared']}" in shown.out


def test_a_target_of_its_own_takes_the_place_of_a_recipe(run, model_file):
    ended = run("transfer", "cifar10-resnet", f"{model_file}:build", *DATA, *ATTACK, "--refine", 0, "--json")
    assert ended.code == 0, ended.err
    there, back = results_of(ended.out)
    assert there["clean_accuracy"] == back["source_clean_accuracy"]
    assert back["clean_accuracy"] == there["source_clean_accuracy"]


def test_wrong_use_is_explained(run, recipe):
    assert "one of the two" in run("transfer", "cifar10-resnet").err
    assert "one of the two" in run("transfer", "cifar10-resnet", "resnet20", "--recipe", recipe).err
