"""What is printed runs: the commands in the bash blocks of four pages, through the real command line and offline.

The commands of a page run in order in one folder, as they are printed but for the substitutions of `smaller`.
"""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from lipforge.paper import load_settings
from tests.test_docs import FENCE, ROOT

PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("cli", "models", "reproducing"))]

NOT_OFFLINE = {"lipforge data get cifar10": "downloads CIFAR-10"}
"""Commands that are not run, with the reason."""

EXIT_CODES = {
    "lipforge forge resnet20 --data cifar10-sample": {2},
    "lipforge data check folder:pets": {2},
    "lipforge audit --table paper": {1},
}
"""Commands that are printed because of how they fail."""

VERDICTS = {"audit": {0, 1, 3, 4}, "evaluate": {0, 4}, "curve": {0, 4}}
"""The exit codes of commands that judge, of which a few images may give any."""

SIZES: dict[str, dict[str, int]] = {
    "forge": {"--limit": 16},
    "fold": {"--limit": 16},
    "search": {"--limit": 1},
    "improve": {"--calibrate": 100, "--validate": 2, "--max-cost": 2},
    "evaluate": {"--limit": 1, "--probe": 2},
    "curve": {"--limit": 1},
    "corrupt": {"--limit": 1},
    "sweep": {"--limit": 1},
    "transfer": {"--limit": 1},
    "audit": {"--limit": 1},
    "export": {"--limit": 4},
    "certify": {"--limit": 1},
    "bracket": {"--limit": 2},
    "analyse": {"--images": 2},
    "train": {"--limit": 128, "--holdout": 8, "--epochs": 1},
    "demo": {"--count": 1},
    "reproduce": {"--limit": 2, "--probe": 2},
}
"""The most work that each command does here."""

MODEL = """
import torch.nn.functional as F
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.conv1 = nn.Conv2d(16, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = F.relu(self.stem(x))
        return self.head((x + self.conv2(F.relu(self.conv1(x)))).mean((2, 3)))

def build():
    return Net()
"""
"""The user's model: the one of docs/own-model.md."""

TRAINING_DATA = ("forge", "fold", "improve", "search", "train")


@dataclass(frozen=True)
class Printed:
    """A command as a page prints it, and the text block right after it, if there is one."""

    text: str
    shown: str | None

    @property
    def words(self) -> list[str]:
        """The command's words, without its comment."""
        return shlex.split(self.text, comments=True)


def printed(page: Path) -> list[Printed]:
    """The lipforge and torchrun commands of a page's bash blocks, in order."""
    found: list[Printed] = []
    text = page.read_text()
    blocks = list(FENCE.finditer(text))
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block["info"].split()[:1] != ["bash"]:
            continue
        lines = block["body"].replace("\\\n", " ").splitlines()
        commands = [line for line in lines if line.startswith(("lipforge ", "torchrun "))]
        shown = after["body"] if after is not None and after["info"].strip() == "text" else None
        between = text[block.end() : after.start()] if after is not None else ""
        shown = shown if len(commands) == 1 and not between.strip() else None
        found += [Printed(line, shown) for line in commands]
    return found


def smaller(words: list[str]) -> list[str]:
    """The words of a `lipforge` command with all that is substituted, and nothing else."""
    command, done = words[1], list(words)
    if "--table" in words or command not in SIZES:
        return done
    for option, most in SIZES[command].items():
        if option != "--probe" or "--estimate" in words:
            _lower(done, option, most)
    if command == "reproduce" and "--stand-in" not in words:
        done.append("--stand-in")
    elif command not in ("demo", "reproduce"):
        split = ":train" if command in TRAINING_DATA else ""
        done += [] if "--data" in done else ["--data", f"cifar10{split}"]
        at = done.index("--data") + 1
        done[at] = re.sub(r"^cifar10(?=:|$)", "cifar10-sample", done[at]).replace("folder:/", "folder:")
    if any(map(is_zoo, words)) and "--no-weights" not in words:
        done.append("--no-weights")
    return done


def is_zoo(word: str) -> bool:
    """Whether the word names a model of an optional package."""
    return word.startswith(("robustbench:", "timm:", "torchvision:"))


def _lower(words: list[str], option: str, most: int) -> None:
    if option not in words:
        words += [option, str(most)]
        return
    at = words.index(option) + 1
    words[at] = str(min(int(words[at]), most))


def make_files(folder: Path) -> None:
    """The user's own files that the pages name."""
    (folder / "my_model.py").write_text(MODEL)
    model = runpy.run_path(str(folder / "my_model.py"))["build"]()
    for name in ("model.pt", "mine.pt", "my_weights.pt"):
        torch.save(model.state_dict(), folder / name)
    for name in ("pets/cat/0", "pets/cat/1", "pets/cat/2", "pets/dog/0", "pets/dog/1"):
        _picture(folder / f"{name}.png", 40)
    (folder / "pets" / "dog" / "2.png").write_text("no picture")
    for imagenet in ("data/imagenet/train", "data/imagenet/val", "imagenet/train"):
        for number in range(2):
            _picture(folder / imagenet / f"class{number}" / f"{number}.png", 230)


def _picture(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.linear_gradient("L").resize((size, size)).convert("RGB").save(path)


RUNNER = """
import contextlib, io, json, sys
from lipforge.cli.main import main

answers = sys.stdout
for line in sys.stdin:
    sys.argv = json.loads(line)
    said, code = io.StringIO(), 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    print("ended:", json.dumps([code, said.getvalue()]), file=answers, flush=True)
"""
"""A process that runs one command after the other through the entry point: starting one takes seconds."""


@contextmanager
def shell(folder: Path) -> Iterator["Shell"]:
    """A folder in which commands can be run, without a network."""
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    environment = {**os.environ, **nowhere, "PATH": str(Path(sys.executable).parent), "PYTHONPATH": str(ROOT / "src")}
    environment |= {"LIPFORGE_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    for name in ("LIPFORGE_DATA", "COLUMNS", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        environment.pop(name, None)
    runner, pipe = [sys.executable, "-c", RUNNER], subprocess.PIPE
    with subprocess.Popen(runner, cwd=folder, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Shell(folder, environment, process)
        finally:
            process.terminate()


@dataclass(frozen=True)
class Shell:
    """Runs commands in one folder; each gives its exit code and all that it wrote."""

    folder: Path
    environment: dict[str, str]
    process: "subprocess.Popen[str]"

    def run(self, words: list[str]) -> tuple[int, str]:
        """Run a command of `lipforge`, or of torchrun with two processes."""
        return self._torchrun(words) if words[0] == "torchrun" else self._lipforge(words)

    def _lipforge(self, words: list[str]) -> tuple[int, str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(words), file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith("ended: "):
                code, said = json.loads(line.removeprefix("ended: "))
                return int(code), str(said)
        return self.process.wait(), "the process ended without an answer"

    def _torchrun(self, words: list[str]) -> tuple[int, str]:
        # Any free port, so that two of them can run on one machine.
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", *words[1:]]
        pipe, both = subprocess.PIPE, subprocess.STDOUT
        with subprocess.Popen(
            start, cwd=self.folder, env=self.environment, stdout=pipe, stderr=both, text=True
        ) as process:
            try:
                said = process.communicate(timeout=240)[0]
            finally:
                process.terminate()  # torchrun then ends its ranks; a kill would leave them behind
        return process.returncode, said


def in_full(words: list[str]) -> list[str]:
    """A command as it is run here: smaller, and under torchrun with two processes."""
    at = words.index("lipforge")
    before = list(words[:at])
    if before:
        before[before.index("--nproc-per-node") + 1] = "2"
    return [*before, *smaller(words[at:])]


def as_shown(said: str, folder: Path) -> str:
    """What a command wrote as a page shows it: without blanks at the ends of lines, and ... for what varies."""
    said = said.replace(str(folder / "cache"), "...")
    return re.sub(r"(?<=^digest )[0-9a-f]{64}$", "...", re.sub(r" +$", "", said, flags=re.M), flags=re.M)


def expected(command: Printed) -> set[int]:
    """The exit codes that the command may have."""
    text = shlex.join(command.words)
    return EXIT_CODES.get(text, VERDICTS.get(command.words[1], {0}))


def pages() -> list[Any]:
    """The pages with commands; those that name models of optional packages are marked."""
    found = {page: [word for command in printed(page) for word in command.words] for page in PAGES}
    return [
        pytest.param(page, id=page.name, marks=[pytest.mark.zoo] if any(map(is_zoo, words)) else [])
        for page, words in found.items()
        if words
    ]


@pytest.mark.slow
@pytest.mark.parametrize("page", pages())
def test_the_commands_of_a_page_run_as_they_are_printed(page, tmp_path):
    make_files(tmp_path)
    failed = []
    with shell(tmp_path) as run_in:
        for command in printed(page):
            if shlex.join(command.words) in NOT_OFFLINE:
                continue
            words = in_full(command.words)
            code, said = run_in.run(words)
            if code not in expected(command):
                failed.append(f"{command.text}\n  run as {shlex.join(words)}\n  exit code {code}: {said[-2000:]}")
            elif words == command.words and command.shown not in (None, as_shown(said, tmp_path)):
                failed.append(f"{command.text}\n  prints {as_shown(said, tmp_path)}")
    assert not failed, "\n".join(failed)


def test_every_command_that_is_treated_apart_is_still_printed():
    texts = {shlex.join(command.words) for page in PAGES for command in printed(page)}
    assert {*NOT_OFFLINE, *EXIT_CODES} <= texts


def test_every_table_and_figure_of_the_paper_has_its_command():
    words = [command.words for command in printed(ROOT / "docs" / "reproducing.md")]
    tables = {line[2] for line in words if line[:2] == ["lipforge", "reproduce"] and len(line) > 2}
    assert tables == {*load_settings().tables, *load_settings().figures}
    assert {"--leave-robust-clean" in line for line in words if line[2:3] == ["9a"]} == {True, False}


def test_commands_are_read_from_bash_blocks_with_what_they_print(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```bash\nmake\nlipforge a \\\n  --b 'c d'  # why\n```\n\n```text\nout\n```\n\n```text\nlipforge no\n```\n"
        "```bash\ntorchrun -m -- lipforge e\n```\n\nSays:\n\n```text\nx\n```\n"
    )
    first, second = printed(page)
    assert (first.words, first.shown) == (["lipforge", "a", "--b", "c d"], "out\n")
    assert (second.words, second.shown) == (["torchrun", "-m", "--", "lipforge", "e"], None)


@pytest.mark.parametrize(
    ("text", "substituted"),
    [
        ("lipforge sites timm:x", "lipforge sites timm:x"),
        ("lipforge audit --table paper", "lipforge audit --table paper"),
        ("lipforge forge m --limit 5000", "lipforge forge m --limit 16 --data cifar10-sample:train"),
        ("lipforge sweep m --data cifar10:test", "lipforge sweep m --data cifar10-sample:test --limit 1"),
        ("lipforge sweep m --limit 1", "lipforge sweep m --limit 1 --data cifar10-sample"),
        ("lipforge forge m --data folder:/data/x", "lipforge forge m --data folder:data/x --limit 16"),
        ("lipforge sweep m --data cifar100", "lipforge sweep m --data cifar100 --limit 1"),
        ("lipforge reproduce 1a --estimate", "lipforge reproduce 1a --estimate --limit 2 --probe 2 --stand-in"),
        (
            "torchrun --nproc-per-node 8 -m -- lipforge sweep timm:x",
            "torchrun --nproc-per-node 2 -m -- lipforge sweep timm:x --limit 1 --data cifar10-sample --no-weights",
        ),
    ],
)
def test_only_what_the_table_names_is_substituted(text, substituted):
    assert shlex.join(in_full(shlex.split(text))) == substituted
