import json

import pytest

from lipforge.paper import load_settings
from tests.schemas import result_of, results_of

PRINTED = ["reproduce", "1a", "--stand-in", "--row", "RST-AWP"]


def test_without_a_table_all_of_them_are_listed(run):
    ended = run("reproduce")
    assert ended.code == 0
    for name in (*load_settings().tables, *load_settings().figures):
        assert f" {name} " in ended.out
    listed = results_of(run("reproduce", "--json").out)
    assert listed[0]["models"] == ["RST-AWP", "DefEAT", "LTD", "AWP", "TRADES"]


def test_measured_stands_beside_published_and_is_kept(run, tmp_path):
    ended = run(*PRINTED, "--run", "runs/x")
    assert ended.code == 0, ended.err
    assert "60.04" in ended.out
    assert "the numbers mean nothing" in ended.out
    assert "wrote runs/x/results/reproduction__table-1a__RST-AWP.json" in ended.out
    again = run(*PRINTED, "--run", "runs/x", "--json")
    found = result_of(again.out)
    assert (found["kind"], found["table"], len(found["rows"])) == ("reproduction", "1a", 4)
    assert "2 finished shards" in again.err


def test_missing_checkpoints_are_named_with_where_they_go(run, tmp_path):
    ended = run("reproduce", "2c", "--row", "Liu2023 Swin-L")
    assert ended.code == 0
    assert "missing: ImageNet Liu2023 Swin-L: ImageNet is read from your own folder" in ended.err
    assert "nothing was measured" in ended.out


def test_an_estimate_attacks_a_probe_only(run):
    probed = ("reproduce", "9a", "--stand-in", "--row", "AWP", "--estimate", "--limit", 2, "--probe", 2)
    ended = run(*probed, "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert [one["kind"] for one in found["results"]] == ["estimate"]
    assert found["device_seconds"] > 0
    assert "in all about" in run(*probed).out


@pytest.mark.parametrize(("name", "column"), [("pruned", "pruned in all"), ("eigenvalues", "worst image")])
def test_figures_over_depth_are_printed_and_drawn(run, tmp_path, name, column):
    ended = run("reproduce", name, "--stand-in", "--limit", 2, "--plot", "plots")
    assert ended.code == 0, ended.err
    assert column in ended.out
    assert "blocks.0.mlp.fc1" in ended.out
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {f"{name}.svg", f"{name}.png"}


def test_certified_curves_have_base_and_forged_of_every_model(run, tmp_path):
    ended = run("reproduce", "certified", "--stand-in", "--limit", 2, "--row", "*AWP", "--plot", "plots", "--json")
    assert ended.code == 0, ended.err
    labels = [(one["model"], one["label"].split()[-1]) for one in results_of(ended.out)]
    assert labels == [(f"{name} (stand-in)", what) for name in ("RST-AWP", "AWP") for what in ("base", "2^-7")]
    assert (tmp_path / "plots/certified.svg").read_text().count("<svg") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["12"], "no table or figure '12'"),
        (["1a", "--row", "nothing"], "it has RST-AWP, DefEAT"),
        (["1A"], "did you mean '1a'?"),
        (
            ["certified", "--ratio", "2^-6", "--stand-in"],
            "--ratio, --frequency and --leave-robust-clean are for tables",
        ),
        (["1a", "--plot", "plots", "--stand-in"], "--plot draws figures"),
        (["1a", "--estimate", "--limit", "1", "--stand-in"], "an estimate needs at least 2 test images, got 1"),
        (["certified", "--estimate"], "--estimate is for tables"),
        (["1a", "--weights-dir", "nowhere"], "weights_dir must be a folder, got nowhere"),
        (["certified", "--dtype", "bfloat16", "--stand-in"], "figures are measured in float32, got dtype bfloat16"),
        (["1a", "--dtype", "int8"], "dtype must be one of float32, bfloat16, float16, got 'int8'"),
        (["1a", "--limit", "0"], "limit must be at least 1"),
        (["8", "--frequency", "often", "--stand-in"], "frequency"),
        (["8", "--frequency", "0", "--stand-in"], "frequency must lie in (0, 1], got 0"),
        (["2a", "--ratio", "2^-7,0", "--stand-in"], "ratio must lie in (0, 1], got 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_is_explained_in_one_line(run, arguments, complaint):
    ended = run("reproduce", *arguments)
    assert ended.code == 2
    assert complaint in ended.err
    assert len(ended.err.splitlines()) == 1
