import os
import signal
import subprocess
import sys
import time
import warnings

import pytest

from lipforge.cli.main import COMMANDS as COMMAND_FUNCTIONS

COMMANDS = [[command.__name__] for command in COMMAND_FUNCTIONS]
COMMANDS += [["data", "list"], ["data", "get"], ["data", "check"]]
HEAVY = """
import sys
from lipforge.cli.main import main
try:
    main()
except SystemExit:
    print(sorted({"torch", "numpy", "scipy", "matplotlib"} & set(sys.modules)))
"""


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_help_of_a_command_shows_an_example(run, command):
    ended = run(*command, "--help")
    assert ended.code == 0
    assert f"lipforge {' '.join(command)}" in ended.out.split("Example")[1]
    assert "[bold]" not in ended.out


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], *([*command, "--help"] for command in COMMANDS)], ids=" ".join
)
def test_version_and_help_import_nothing_heavy(environment, arguments):
    command = [sys.executable, "-c", HEAVY, *arguments]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[-1] == "[]"


def test_the_help_lists_the_commands_and_the_exit_codes(run):
    ended = run("-h")
    assert ended.code == 0
    for command in [*(command[0] for command in COMMANDS), "130 interrupted"]:
        assert command in ended.out


@pytest.mark.parametrize(
    ("arguments", "new"),
    [
        (["evaluate", "cifar10-resnet", "--attack-seed", "3"], "there is no option --attack-seed; it is called --seed"),
        (["audit", "cifar10-resnet", "--attack-seed=3"], "it is called --seed"),
        (["transfer", "cifar10-resnet", "--push", "2"], "there is no option --push; it is called --refine"),
        (["train", "--step", "2"], "there is no option --step; it is called --step-size"),
        (["forge", "cifar10-resnet", "--seed", "2"], "there is no option --seed; it is called --data-seed"),
    ],
    ids=lambda value: value[-2] if isinstance(value, list) else "",
)
def test_an_option_that_was_renamed_says_its_new_name(run, arguments, new):
    ended = run(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert new in ended.err
    assert len(ended.err.splitlines()) == 1


def test_the_version_is_printed(run):
    ended = run("--version")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.strip()


@pytest.mark.parametrize(
    ("arguments", "usage", "complaint"),
    [
        (["sites"], "lipforge sites", "Missing argument 'MODEL'"),
        (["forge"], "lipforge forge", "Missing argument 'MODEL'"),
        (["sites", "resnet20", "--nothing"], "lipforge sites", "No such option: --nothing"),
        (["sites", "resnet20", "resnet32"], "lipforge sites", "unexpected extra argument"),
        (["forge", "resnet20", "--limit", "many"], "lipforge forge", "--limit"),
        (["polish"], "lipforge", "No such command 'polish'"),
        (["data", "burn"], "lipforge data", "No such command 'burn'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_ends_with_2_and_the_usage_line(run, arguments, usage, complaint):
    ended = run(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert f"Usage: {usage}" in ended.err
    assert complaint in ended.err


def test_no_command_at_all_shows_the_help(run):
    ended = run()
    assert "Usage: lipforge" in ended.out + ended.err
    assert "error" not in ended.err


def test_an_error_is_one_line_on_stderr_without_a_traceback(run_process):
    ended = run_process("sites", "resnet2O")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: no model 'resnet2O'")
    assert "did you mean 'resnet" in ended.err
    assert len(ended.err.splitlines()) == 1


@pytest.mark.parametrize("place", [0, 1, 2])
def test_debug_shows_the_traceback_wherever_it_stands(run, place):
    arguments = ["sites", "resnet2O"]
    arguments.insert(place, "--debug")
    ended = run(*arguments)
    assert ended.code == 2
    assert ended.err.startswith("Traceback (most recent call last)")
    assert ended.err.splitlines()[-1].startswith("error: no model 'resnet2O'")


@pytest.mark.parametrize("name", ["[red]mine[/]", "[/]", "[bold", ":dog:", "\\[x]"])
def test_brackets_and_colons_in_an_error_are_printed_as_they_are(run, name):
    ended = run("sites", "resnet20", "--rule", name)
    assert ended.code == 2
    assert f"unknown rule {name!r}" in ended.err


def test_brackets_and_colons_in_a_name_are_printed_as_they_are(run, tmp_path, model_file):
    folder = tmp_path / "[old]"
    folder.mkdir()
    (folder / "net.py").write_text(model_file.read_text() + "\ndog = build\n")
    ended = run("sites", "[old]/net.py:dog")
    assert ended.code == 0
    assert "[old]/net.py:dog: 2 sites" in ended.out


@pytest.mark.parametrize("code", ["[0] * (1 << 60)", "torch.empty(1 << 58)"])
def test_too_little_memory_is_no_bug_and_has_a_way_out(run, tmp_path, code):
    (tmp_path / "large.py").write_text(f"import torch\n\ndef build():\n    return {code}\n")
    ended = run("sites", "large.py:build")
    assert ended.code == 2
    assert "error: out of memory (" in ended.err
    assert "finished work is saved. Resume by the same command with more memory" in ended.err


@pytest.mark.parametrize(
    ("source", "place", "line"),
    [
        ("def build():\n    return {}['width']\n", "broken.py:build", "line 2, in build"),
        ("{}['width']\n", "broken.py", "line 1, in <module>"),
    ],
    ids=["in the function", "at import"],
)
def test_an_error_in_a_models_own_code_is_no_bug_and_says_where_it_came_from(run, tmp_path, source, place, line):
    (tmp_path / "broken.py").write_text(source)
    ended = run("sites", "broken.py:build")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == f"error: {place} raised KeyError: 'width' (--debug shows where)\n"
    shown = run("sites", "broken.py:build", "--debug")
    assert f'broken.py", {line}' in shown.err


def test_a_bug_ends_with_70_and_the_way_to_its_place(run, monkeypatch):
    def broken(spec):
        raise KeyError("width")

    monkeypatch.setattr("lipforge.models.load.is_architecture", broken)
    ended = run("sites", "resnet20")
    assert (ended.code, ended.out) == (70, "")
    assert "error: 'width'" in ended.err
    assert "(KeyError); --debug shows where" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.filterwarnings("default")
def test_a_warning_of_another_package_says_where_it_comes_from(run, tmp_path, model_file):
    (tmp_path / "loud.py").write_text(
        model_file.read_text() + "\nimport warnings\nwarnings.warn('old [API]', FutureWarning)\n"
    )
    shown = warnings.showwarning
    ended = run("sites", "loud.py:build")
    assert ended.code == 0
    assert "FutureWarning: old [API]" in ended.err
    assert "loud.py" in ended.err
    assert warnings.showwarning is shown


def test_an_interrupt_ends_with_130_and_leaves_no_file(run, tmp_path, model_file):
    stop = "if len(x) > 1: raise KeyboardInterrupt\n        x = F.relu(self.stem(x))"
    model_file.write_text(model_file.read_text().replace("x = F.relu(self.stem(x))", stop))
    ended = run("forge", f"{model_file}:build", "--data", "cifar10-sample", "--out", "r.json")
    assert (ended.code, ended.out) == (130, "")
    assert ended.err == "Interrupted. Nothing was saved: there was no --run.\n"
    assert "Traceback" not in ended.err
    assert not [path.name for path in tmp_path.iterdir() if "r.json" in path.name]


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c_during_calibration_ends_with_130_and_leaves_no_file(environment, tmp_path, model_file):
    slow = "(open('running', 'w').close(), time.sleep(0.2)) if len(x) > 1 else None\n        x = F.relu(self.stem(x))"
    model_file.write_text("import time\n" + model_file.read_text().replace("x = F.relu(self.stem(x))", slow))
    command = [sys.executable, "-m", "lipforge", "forge", f"{model_file}:build", "--data", "cifar10-sample"]
    process = subprocess.Popen(
        [*command, "--batch-size", "2", "--no-weights", "--out", "r.json"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that starts the tests in the background lets its children ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not (tmp_path / "running").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "")
    assert err == "Interrupted. Nothing was saved: there was no --run.\n"
    assert "Traceback" not in err
    assert not [path.name for path in tmp_path.iterdir() if "r.json" in path.name]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_gets_a_completion_script(run, monkeypatch, shell):
    monkeypatch.setenv("_LIPFORGE_COMPLETE", f"source_{shell}")
    ended = run()
    assert ended.code == 0
    assert f"_LIPFORGE_COMPLETE=complete_{shell}" in ended.out


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("lipforge si", ["sites"]),
        ("lipforge data ", ["list", "get", "check"]),
        ("lipforge sites resnet2", ["resnet20"]),
        ("lipforge forge x --mask p", ["piecewise"]),
        ("lipforge forge x --data cifar10-", ["cifar10-sample"]),
        ("lipforge sites x --rule gate", ["gate_layers"]),
    ],
)
def test_the_shell_completes_commands_and_known_names(run, monkeypatch, line, offers):
    monkeypatch.setenv("_LIPFORGE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    ended = run()
    assert ended.code == 0
    assert ended.out.split() == offers
