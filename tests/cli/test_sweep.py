from lipforge.attacks import FGSM, PGD
from lipforge.data import load_data
from lipforge.evaluation import sweep
from lipforge.models import load_model
from lipforge.types import Threat
from tests.cli.test_search import DATA, recipe
from tests.schemas import result_of

__all__ = ["recipe"]

ATTACKS = ("--attack", "fgsm", "--attack", "pgd:steps=2")


def test_the_json_has_the_rows_of_the_library(run):
    ended = run("sweep", "cifar10-resnet", *DATA, *ATTACKS, "--eps", "2/255,16/255", "--independent", "--json")
    assert ended.code == 0, ended.err
    found = result_of(ended.out)
    threats = [Threat("linf", "2/255"), Threat("linf", "16/255")]
    data = load_data("cifar10-sample", limit=12, seed=3)
    expected = sweep({"base": load_model("cifar10-resnet")}, data, [FGSM(), PGD(steps=2)], threats, carry=False)
    assert (found["kind"], found["carry"]) == ("sweep", False)
    assert [row["outcome"] for row in found["rows"]] == [list(row.outcome) for row in expected.rows]


def test_the_table_has_a_line_per_view_and_attack_and_a_column_per_radius(run, recipe, tmp_path):
    given = (*DATA, *ATTACKS, "--eps", "2/255,8/255", "--run", "runs/w")
    ended = run("sweep", "cifar10-resnet", "--recipe", recipe, *given)
    assert ended.code == 0, ended.err
    table, _ = ended.out.split("wrote ")
    lines = [line for line in table.splitlines() if "fgsm" in line or "pgd:steps=2" in line]
    assert [line.split()[1] for line in lines] == ["base", "base", "forged", "forged"]
    header = next(line for line in ended.out.splitlines() if "attack" in line and "clean" in line)
    assert "2/255" in header
    assert "8/255" in header
    assert "broken images carried over to larger eps" in " ".join(ended.out.split())
    (written,) = (tmp_path / "runs/w/results").glob("sweep__*.json")
    assert f"wrote runs/w/results/{written.name}" in ended.out


def test_wrong_use_is_explained(run):
    assert "--eps must list different radii" in run("sweep", "cifar10-resnet", "--eps", "8/255,8/255").err
    assert "give one with --recipe" in run("sweep", "cifar10-resnet", *DATA, "--ratio", "2^-6").err
