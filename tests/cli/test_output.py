"""What goes to stdout and what to stderr: one JSON object under --json, even for an error; and readers that leave."""

import json
import os
import subprocess
import sys

import pytest

from lipforge.records import lipforge_version
from tests.schemas import problems, results_of

LIST = ["data", "list"]


def error_of(ended):
    """The error that a command printed under --json; there is nothing else on stdout."""
    printed = json.loads(ended.out)
    assert problems(printed, "envelope") == []
    assert (printed["kind"], printed["results"]) == ("error", [])
    return printed["error"]


def test_the_object_says_the_command_the_format_and_the_version(run):
    printed = json.loads(run(*LIST, "--json").out)
    assert list(printed) == ["kind", "format", "lipforge", "results", "cache"]
    assert (printed["kind"], printed["lipforge"]) == ("data list", lipforge_version())
    assert json.loads(run("sites", "resnet20", "--json").out)["kind"] == "sites"


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (["sites", "resnet2O"], "InputError", "no model 'resnet2O'"),
        (["sites"], "MissingParameter", "Missing argument 'MODEL'"),
        (["sites", "resnet20", "--nothing"], "NoSuchOption", "No such option: --nothing"),
        (["forge", "resnet20", "--limit", "many"], "BadParameter", "Invalid value for '--limit'"),
        (["polish"], "UsageError", "No such command 'polish'"),
        (["data", "burn"], "UsageError", "No such command 'burn'"),
        (["evaluate", "resnet20", "--attack-seed", "3"], "InputError", "it is called --seed"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_and_bad_input_are_objects_too(run, arguments, kind, message):
    ended, without = run(*arguments, "--json"), run(*arguments)
    error = error_of(ended)
    assert (ended.code, error["exit_code"], error["type"]) == (2, 2, kind)
    assert message in error["message"]
    assert ended.err == without.err
    assert without.out == ""


def test_a_bug_and_an_interrupt_are_objects_too(run, tmp_path, monkeypatch):
    def broken(spec):
        raise KeyError("width")

    (tmp_path / "stopped.py").write_text("def build():\n    raise KeyboardInterrupt\n")
    stopped = run("sites", "stopped.py:build", "--json")
    monkeypatch.setattr("lipforge.models.load.is_architecture", broken)
    bug = run("sites", "resnet20", "--json")
    assert (bug.code, error_of(bug)) == (70, {"message": "'width'", "exit_code": 70, "type": "KeyError"})
    assert (stopped.code, error_of(stopped)["exit_code"]) == (130, 130)
    assert stopped.err.startswith("Interrupted.")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("place", [0, 1, 2])
def test_quiet_leaves_out_notes_and_warnings_wherever_it_stands(run, tmp_path, model_file, place):
    (tmp_path / "loud.py").write_text(model_file.read_text() + "\nimport warnings\nwarnings.warn('old')\n")
    arguments = ["sites", "loud.py:build"]
    arguments.insert(place, "--quiet")
    ended = run(*arguments)
    assert (ended.code, ended.err) == (0, "")
    assert "2 sites" in ended.out


def test_quiet_ends_with_the_command_and_keeps_errors(run):
    given = ("sweep", "cifar10-resnet", "--norm", "l2", "--eps", "8/255,8/255")
    quiet, loud = run(*given, "--quiet"), run(*given)
    assert (quiet.code, quiet.err) == (2, "error: --eps must list different radii, got 8/255,8/255\n")
    assert "note: eps 8/255 is usual in linf and tiny in l2" in loud.err
    assert quiet.err in loud.err


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (LIST, 0, ""),
        ([*LIST, "--json"], 0, ""),
        (["--help"], 0, ""),
        (["audit", "--table", "paper"], 1, ""),  # as it ends with a reader: the command goes on to its end
        (["sites", "resnet2O", "--json"], 2, "error: no model 'resnet2O'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_reader_that_leaves_changes_no_exit_code_and_causes_no_message(environment, arguments, code, said):
    read, written = os.pipe()
    os.close(read)  # as `head -1` does, only sooner
    command = [sys.executable, "-m", "lipforge", *arguments]
    with open(written, "wb") as pipe:
        ended = subprocess.run(command, env=environment, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=100)
    assert ended.returncode == code
    assert ended.stderr.startswith(said)
    assert len(ended.stderr.splitlines()) == bool(said)


def test_results_are_a_list_even_of_one(run):
    assert [one["kind"] for one in results_of(run("sites", "resnet20", "--json").out)] == ["sites"]
