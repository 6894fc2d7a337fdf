"""What the command line does with names that others chose, and what it does on the network: nothing."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

ESCAPE = "\x1b]0;title\x07\x1b[2J"
OFFLINE = """
import sys
def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        raise RuntimeError(f"{event} {arguments[1:]}")
sys.addaudithook(watch)
from lipforge.cli.main import main
for line in sys.stdin.read().splitlines():
    sys.argv = ["lipforge", *line.split(), "--quiet"]
    try:
        main()
    except SystemExit as end:
        assert end.code in (0, 1, 3, 4), (line, end.code)
"""
SMALL = "--data cifar10-sample --limit 4"
COMMANDS = f"""models
data list
data check cifar10-sample
sites SPEC
forge SPEC --data cifar10-sample:train --limit 8
fold SPEC --recipe recipe.json --data cifar10-sample:train --limit 8 --out fold.safetensors
search SPEC --recipe recipe.json {SMALL} --attack pgd:steps=2 --ratios 2^-7 --metric non-adaptive
sweep SPEC --recipe recipe.json {SMALL} --attack pgd:steps=2 --eps 1/255,2/255
transfer SPEC --recipe recipe.json {SMALL} --attack pgd:steps=2
audit SPEC --recipe recipe.json {SMALL}
audit --table paper
evaluate SPEC --recipe recipe.json {SMALL} --attack pgd:steps=2 --run run
curve SPEC {SMALL} --attack fmn:steps=2
certify SPEC {SMALL} --n0 2 --n 4
analyse SPEC --recipe recipe.json --data cifar10-sample --images 4
improve SPEC --data cifar10-sample:train --calibrate 4 --validate 4 --parts tta --tta mirror
train --arch SPEC --data cifar10-sample:train --limit 16 --holdout 4 --batch-size 8 --epochs 1 --out trained
export SPEC --recipe recipe.json --out model.safetensors {SMALL}
report run
"""


def test_commands_that_say_nothing_of_a_download_open_no_connection(model_file, environment, tmp_path):
    lines = COMMANDS.replace("SPEC", f"{model_file}:build")
    command = [sys.executable, "-c", OFFLINE]
    environment["LIPFORGE_CACHE"] = str(tmp_path / "cache")
    ended = subprocess.run(command, env=environment, input=lines, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "wrote run/report.html" in ended.stdout


@pytest.mark.parametrize(
    "command", ["evaluate SPEC --weights odd.safetensors --data cifar10-sample", "data check folder:odd"]
)
def test_escape_codes_in_names_do_not_reach_the_terminal(run, model_file, tmp_path, command):
    save_file({f"head.{ESCAPE}": torch.zeros(1)}, tmp_path / "odd.safetensors")
    (tmp_path / "odd" / ESCAPE).mkdir(parents=True)
    (tmp_path / "odd" / ESCAPE / "a.png").write_bytes(b"no picture")
    ended = run(*command.replace("SPEC", f"{model_file}:build").split())
    said = ended.out + ended.err
    assert ended.code == 2
    assert "\\x1b]0;title" in said
    assert "\x1b" not in said
    assert "\x07" not in said
