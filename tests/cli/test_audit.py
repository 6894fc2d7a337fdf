import json
import subprocess
import sys

import pytest

from lipforge.paper import check_table, load_paper
from lipforge.results import VERDICTS
from tests.schemas import result_of

IMAGES = ("--data", "cifar10-sample:test", "--limit", 2, "--eps", "1/255", "--device", "cpu")


@pytest.fixture
def spec(model_file):
    return f"{model_file}:build"


def test_the_papers_numbers_are_checked_and_the_breaks_named(run):
    ended = run("audit", "--table", "paper")
    assert (ended.code, ended.err) == (1, "")
    lines = ended.out.splitlines()
    assert lines[0] == "13 findings in 728 published numbers, which break 6 of 10 rules"
    for words in ("FGSM 70.58 < PGD 72.81", "PGD 28.57 is 6.24 outside", "CW 80.92 is 7.20 above PGD 73.72"):
        assert any(words in line for line in lines)


def test_json_has_the_same_findings(run):
    ended = run("audit", "--table", "paper", "--json")
    found = result_of(ended.out)
    expected = check_table(load_paper(), source="paper")
    assert found["kind"] == "table_audit"
    assert [item["evidence"] for item in found["findings"]] == [item.evidence for item in expected.findings]


def test_a_table_without_breaks_ends_with_0(run, tmp_path):
    (tmp_path / "mine.csv").write_text(
        "table,dataset,model,variant,ratio,attack,eps,accuracy\n"
        "1,cifar10,net,,0,FGSM,8/255,50\n1,cifar10,net,,0,PGD,8/255,45\n"
    )
    ended = run("audit", "--table", "mine.csv")
    assert ended.code == 0
    assert ended.out.startswith("2 published numbers break none of 1 rules (9 more had nothing to compare)")


def test_attacks_that_no_rule_knows_are_named_and_no_clean_bill_is_given_for_them_alone(run, tmp_path):
    head = "table,dataset,model,variant,ratio,attack,eps,accuracy\n"
    odd = "1,cifar10,net,,0,MIM,8/255,50\n1,cifar10,net,,0,one-pixel,8/255,45\n"
    (tmp_path / "odd.csv").write_text(head + odd)
    ended = run("audit", "--table", "odd.csv")
    assert ended.code == 2
    assert "odd.csv has nothing that a rule could check" in ended.err
    assert "MIM, one-pixel" in ended.err
    (tmp_path / "mixed.csv").write_text(
        head + odd + "1,cifar10,net,,0,pgd-20,8/255,45\n1,cifar10,net,,0,AutoAttack,8/255,48\n"
    )
    ended = run("audit", "--table", "mixed.csv")
    assert ended.code == 1
    assert "not checked, as no rule knows the attack: MIM, one-pixel" in ended.out
    assert "AutoAttack 48.00 is 3.00 above pgd-20 45.00" in ended.out


def test_a_forged_model_is_audited_and_the_result_kept(run, tmp_path, spec):
    assert run("forge", spec, "--data", "cifar10-sample:train", "--limit", 16).code == 0
    ended = run("audit", spec, "--recipe", "recipe.json", "--ratio", "0", *IMAGES, "--run", "kept")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert lines[1].startswith("no change: both gave equal logits")
    assert "wrote kept/results" in ended.out
    assert "n = 2: no gain is likely to be called real" in ended.err
    saved = json.loads((tmp_path / "kept/results/audit__linf-1over255.json").read_text())
    assert (saved["kind"], saved["verdict"], saved["count"]) == ("audit", "no change", 2)
    again = run("audit", spec, "--recipe", "recipe.json", "--ratio", "0", *IMAGES, "--run", "kept", "--json")
    assert result_of(again.out) == saved
    assert "likely to be called real" not in again.err


def test_two_models_are_audited_as_a_pair(run, spec):
    ended = run("audit", spec, spec, *IMAGES, "--json")
    found = result_of(ended.out)
    assert ended.code == VERDICTS[found["verdict"]].exit_code
    assert found["model"] == f"{spec} and {spec}"
    assert found["candidate_effort"]["backwards"] > 0 or found["clean"]["forged_accuracy"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "audit needs a MODEL with --recipe"),
        (["SPEC"], "one of the two"),
        (["SPEC", "SPEC", "--recipe", "r.json"], "one of the two"),
        (["SPEC", "SPEC", "--ratio", "2^-7"], "--ratio changes the ratio of a --recipe"),
        (["SPEC", "SPEC", "--fold", "f.safetensors"], "--fold is about a model with --recipe; a CANDIDATE has none"),
        (["SPEC", "--recipe", "r.json", "--fold", "f.safetensors"], "no file f.safetensors"),
        (["SPEC", "--recipe", "r.json", "--candidate-weights", "w.pt"], "--candidate-weights needs a CANDIDATE"),
        (["SPEC", "--table", "paper"], "takes no MODEL"),
        (["SPEC", "SPEC", "--version", "slow"], "version must be one of fast, standard"),
        (["SPEC", "SPEC", "--margin", "0"], "margin must lie between 0 and 1"),
        (["SPEC", "SPEC", "--eps", "0"], "eps must be above 0"),
        (["--table", "none.csv"], "none.csv"),
    ],
)
def test_wrong_use_is_explained(run, spec, arguments, message):
    with_data = [*arguments, "--data", "cifar10-sample:test"]
    ended = run("audit", *(spec if word == "SPEC" else word for word in with_data))
    assert ended.code == 2
    assert message in ended.err


@pytest.mark.slow
def test_a_verdict_is_no_crash_to_torchrun(run, environment, model_file, mirrored):
    arguments = ["audit", f"{model_file}:build", "--recipe", mirrored, *map(str, IMAGES), "--json"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1"]
    command = [*torchrun, "--nproc-per-node", "2", "-m", "--", "lipforge", *arguments]
    shared = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    alone = run(*arguments)
    assert (shared.returncode, result_of(shared.stdout)["verdict"]) == (0, "undecided")
    assert (alone.code, result_of(alone.out)["verdict"]) == (3, "undecided")
