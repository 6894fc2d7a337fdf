import json
import sys

import pytest

from lipforge.cli import demo
from lipforge.cli.main import main
from lipforge.data import load_data
from lipforge.errors import DataError
from lipforge.forge import load_recipe


def without_cifar10(spec, **options):
    if spec == "cifar10":
        raise DataError("no CIFAR-10 here")
    return load_data(spec, **options)


@pytest.mark.slow
def test_the_demo_runs_on_the_images_it_ships_with_and_counts_right(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "load_data", without_cifar10)
    monkeypatch.setattr(sys, "argv", ["lipforge", "demo", "--count", "20", "--out", str(tmp_path), "--json"])
    with pytest.raises(SystemExit) as stop:
        main()
    output = capsys.readouterr()
    result = json.loads(output.out)
    assert stop.value.code in (0, None)
    assert "CIFAR-10 cannot be had here" in output.err
    assert (result["clean_count"], result["attack_count"]) == (500, 20)
    assert json.loads((tmp_path / "demo.json").read_text()) == result
    assert load_recipe(tmp_path / "recipe.json").images_seen == 500
    base, *forged = result["rows"]
    assert base["clean"] > 0.6  # the bundled model's card says 0.6857 on all test images
    for row in forged:
        assert row["union"] <= min(row["plain_attack"], row["adaptive_attack"])
        assert round(20 * (row["union"] - base["union"])) == row["gained"] - row["lost"]


def rows(*figures: tuple[float, float, float, int, int]) -> tuple[demo.Row, ...]:
    base = demo.Row(0.0, 0.7, 0.30, 0.30, 0.30, 0, 0)
    return (base, *(demo.Row(ratio, 0.7, plain, union, union, up, down) for ratio, plain, union, up, down in figures))


def sentence(*figures: tuple[float, float, float, int, int]) -> str:
    return demo._sentence(demo.Demo("m", "d", "linf 8/255", "pgd", 500, 200, rows(*figures)))


def test_a_gain_that_vanishes_is_called_no_gain():
    text = sentence((2**-7, 0.31, 0.30, 1, 1), (2**-6, 0.34, 0.295, 1, 2))
    assert "did not make this model more robust: 1 images gained, 1 lost out of 200" in text
    assert "+4.0 points at 2^-6, is -0.5 once an attack ignores the masks" in text


def test_a_gain_that_stays_is_called_no_proof_yet():
    assert "no proof yet: 3 images gained, 1 lost" in sentence((2**-7, 0.31, 0.31, 3, 1))
