"""`--config exp.toml`: what a file sets, what wins over it, what is wrong with it, and what a run keeps of it."""

import json
from pathlib import Path

import pytest

from tests.schemas import result_of, results_of

SMALL = """
data = "cifar10-sample"
limit = 3
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        (tmp_path / "exp.toml").write_text(text)
        return "exp.toml"

    return write


def test_shared_keys_a_table_and_the_command_line_win_in_this_order(run, write, model_file):
    path = write(SMALL + f'model = "{model_file}:build"\n[evaluate]\nattack = ["fgsm", "pgd:steps=1"]\nlimit = 4\n')
    found = results_of(run("evaluate", "--config", path, "--json").out)
    assert [(one["attack"], one["count"]) for one in found] == [("fgsm", 4), ("pgd:steps=1", 4)]
    (one,) = results_of(run("evaluate", "--config", path, "--json", "--limit", 2, "--attack", "fgsm").out)
    assert (one["attack"], one["count"]) == ("fgsm", 2)
    assert result_of(run("forge", "--config", path, "--json").out)["images_seen"] == 3


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_file_may_be_named_before_and_after_the_command(run, write, place):
    path = write("[sites]\ninclude = 'layer1.*'\n")
    arguments = ["sites", "resnet20"]
    arguments.insert(place, f"--config={path}")
    assert "resnet20: 6 sites" in run(*arguments).out


def test_flags_numbers_and_both_spellings_of_a_key_are_read(run, write, model_file, tmp_path):
    path = write("[forge]\nno_weights = true\nper-channel = true\ndata_seed = 3\nratio = 0.25\n" + "json = true\n")
    ended = run("forge", f"{model_file}:build", "--data", "cifar10-sample", "--limit", 4, "--config", path)
    recipe = result_of(ended.out)
    assert recipe["data"] == "cifar10-sample/random 4"
    assert recipe["statistic"] == "maximum per channel"
    assert {site["ratio"] for site in recipe["sites"].values()} == {0.25}


def test_a_command_of_a_group_has_a_table_of_its_full_name(run, write):
    assert json.loads(run("data", "list", "--config", write('["data list"]\njson = true\n')).out)["kind"] == "data list"


def test_json_in_the_file_is_heeded_by_errors_too(run, write):
    ended = run("sites", "resnet2O", "--config", write("json = true\n"))
    assert (ended.code, json.loads(ended.out)["kind"]) == (2, "error")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lmit = 3", "exp.toml: no command has an option 'lmit'; did you mean 'limit'?"),
        ("[evaluate]\natack = 'pgd'", "exp.toml: [evaluate] has no option 'atack'; did you mean 'attack' or 'data'?"),
        ("[evalute]\nlimit = 3", "exp.toml: no command 'evalute'; did you mean 'evaluate'?"),
        ("[sites]\nlimit = 3", "exp.toml: [sites] has no option 'limit'"),
        ("[sites]\njson = 'yes'", "exp.toml: json must be true or false, got 'yes'"),
        ("limit = true", "exp.toml: limit must be a text or a number, got True"),
        ("limit = [1, 2]", "exp.toml: limit takes one value, got a list"),
        ("limit = ", "--config exp.toml is not valid TOML"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(run, write, text, message):
    ended = run("sites", "resnet20", "--config", write(text))
    assert (ended.code, ended.out) == (2, "")
    assert f"error: {message}" in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_value_is_read_as_on_the_command_line(run, write):
    ended = run("forge", "resnet20", "--config", write("limit = 1.5"))
    assert ended.code == 2
    assert "Invalid value for '--limit'" in ended.err


@pytest.mark.parametrize(("given", "message"), [(["none.toml"], "none.toml cannot be read: No such"), ([], "nothing")])
def test_a_file_that_is_not_there_is_an_error(run, given, message):
    ended = run("sites", "resnet20", "--config", *given)
    assert ended.code == 2
    assert message in ended.err


def test_a_run_keeps_all_options_of_the_command_wherever_they_come_from(run, write, model_file):
    path = write(SMALL + "[evaluate]\nattack = 'fgsm'\nseed = 5\n")
    assert run("evaluate", f"{model_file}:build", "--config", path, "--eps", "4/255", "--run", "kept").code == 0
    (session,) = json.loads(Path("kept/environment.json").read_text())["environments"]
    assert session["command"].startswith("lipforge evaluate")
    config = session["config"]
    expected = {"model": f"{model_file}:build", "data": "cifar10-sample", "limit": 3, "attack": ["fgsm"], "seed": 5}
    assert {key: config[key] for key in expected} == expected
    assert (config["eps"], config["batch-size"], config["no-weights"]) == ("4/255", "100", False)
    assert "recipe" not in config


def test_what_a_run_keeps_is_a_file_that_gives_the_same(run, write, model_file):
    given = ("analyse", f"{model_file}:build", "--data", "cifar10-sample", "--images", 2, "--attack", "none")
    assert run("forge", f"{model_file}:build", "--data", "cifar10-sample", "--limit", 4).code == 0
    assert run(*given, "--recipe", "recipe.json", "--run", "kept").code == 0
    (session,) = json.loads(Path("kept/environment.json").read_text())["environments"]
    lines = [f"{key} = {json.dumps(value)}" for key, value in session["config"].items()]
    ended = run("analyse", "--config", write("\n".join(["[analyse]", *lines])), "--json")
    assert result_of(ended.out)["images"] == 2
