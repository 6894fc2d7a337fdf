"""`lipforge models`."""

from lipforge.models import known_models, zoos
from lipforge.records import to_builtins
from tests.schemas import results_of


def test_the_list_has_models_with_accuracies_architectures_and_zoos(run):
    ended = run("models")
    assert (ended.code, ended.err) == (0, "")
    row = next(line for line in ended.out.splitlines() if "cifar10-resnet " in line)
    assert "2.8" in row
    assert "68.6 [67.6, 69.5]" in row
    assert "34.8 [33.9, 35.8]" in row
    assert "cifar10, n = 10000, linf 8/255, pgd:steps=20" in row
    assert "architectures: resnet20," in ended.out
    for zoo in zoos():
        assert f"{zoo.name}: version {zoo.version}" in ended.out or f"{zoo.name}: not installed; pip" in ended.out


def test_a_glob_leaves_the_rest_out(run):
    assert run("models", "wrn*").out == "architectures: wrn-28-10, wrn-34-10\n"
    ended = run("models", "nothing*")
    assert (ended.code, ended.out) == (2, "")
    assert "no model matches 'nothing*'" in ended.err


def test_json_has_a_result_for_each_model_and_zoo(run):
    found = results_of(run("models", "--json").out)
    models = [{"kind": "model", **to_builtins(one)} for one in known_models()]
    assert found == [*models, *({"kind": "zoo", **to_builtins(zoo)} for zoo in zoos())]


def test_our_model_stands_beside_the_leaderboard_without_a_rank(run):
    ended = run(
        "evaluate",
        "cifar10-resnet",
        "--data",
        "cifar10-sample",
        "--limit",
        4,
        "--attack",
        "fgsm",
        "--model-info",
        "infos",
    )
    assert "has no autoattack_acc: the attack was fgsm, not AutoAttack standard (--attack autoattack)" in ended.err
    assert "wrote infos/cifar10/Linf/cifar10-resnet.json" in ended.out
    ended = run("models", "[cW]*", "--leaderboard", "cifar10/Linf", "--model-info", "infos", "--json")
    found = {one["model"]: one for one in results_of(ended.out)}
    assert (found["cifar10-resnet"]["rank"], found["cifar10-resnet"]["ranked"]) == (None, False)
    assert found["cifar10-resnet"]["footnote"].startswith("measured by lipforge, base: fgsm, linf 8/255")
    assert not any(name.startswith("A") for name in found)
    ended = run("models", "[cW]*", "--leaderboard", "cifar10/Linf", "--model-info", "infos")
    assert "cifar10-resnet is not ranked, it has no autoattack_acc: measured by lipforge, base: fgsm" in ended.out


def test_a_glob_that_matches_no_model_of_the_leaderboard_is_an_error(run, tmp_path):
    place = tmp_path / "infos" / "cifar10" / "Linf"
    place.mkdir(parents=True)
    (place / "Mine.json").write_text('{"clean_acc": "80.00", "autoattack_acc": "40.00"}')
    arguments = ("--leaderboard", "cifar10/Linf", "--model-info", "infos")
    ended = run("models", "zzz*", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert "no model of the leaderboard cifar10/Linf matches 'zzz*'; leave out GLOB to see all" in ended.err
    assert "Mine" in run("models", "mine", *arguments).out  # upper and lower case alike, as without a leaderboard


def test_wrong_use_of_the_leaderboard_is_explained(run):
    assert "name it with --leaderboard cifar10/Linf" in run("models", "--model-info", "infos").err
    assert "leaderboard must be one of cifar10/Linf" in run("models", "--leaderboard", "cifar10").err
    ended = run("evaluate", "cifar10-resnet", "--data", "cifar10-sample", "--norm", "l1", "--model-info", "infos")
    assert "RobustBench has no leaderboard for cifar10-sample" in ended.err
