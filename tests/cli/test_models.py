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
