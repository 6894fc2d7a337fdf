"""The pages keep their promises: code blocks run and print what the page shows, links and named tests exist."""

import os
import re
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from lipforge.attacks import APGD
from lipforge.auditing.plan import BEFORE_GAIN, TRANSFERRED, audit_plan
from lipforge.cli.main import app
from lipforge.results import VERDICTS

ROOT = Path(__file__).parent.parent
PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if path.exists()]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?!\w+:|#)(?P<target>[^)#\s]+)[^)]*\)")
VERDICT = re.compile(r"^\| `(?P<verdict>[a-z ]+)` \| (?P<title>[^|]+) \| (?P<code>\d) \|", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
NAMED_TEST = re.compile(r"`(?P<file>test_\w+\.py)::(?P<test>test_\w+)`")


def script_of(page: Path) -> str:
    """The python blocks of a page, each on its own lines, so that a traceback shows the page's line numbers."""
    text = page.read_text()
    lines: list[str] = []
    for block in FENCE.finditer(text):
        if block["info"].split()[:1] == ["python"] and "no-run" not in block["info"]:
            lines += [""] * (text.count("\n", 0, block.start("body")) - len(lines))
            lines += block["body"].splitlines()
    return "\n".join(lines).rstrip()


def promised_output(page: Path) -> str:
    return "".join(block["body"] for block in FENCE.finditer(page.read_text()) if block["info"] == "text output")


def run(page: Path, folder: Path) -> str:
    """What the blocks of a page print, run in order in a fresh process in an empty folder."""
    script = folder / f"{page.stem}.py"
    script.write_text(script_of(page))
    # foolbox imports SciPy as it used to be.
    strict = "error,ignore:Please import `gaussian_filter`:DeprecationWarning"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": strict}
    environment.update(LIPFORGE_CACHE=str(folder / "cache"), OMP_NUM_THREADS="1")
    done = subprocess.run([sys.executable, script], cwd=folder, env=environment, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.parametrize("page", [page for page in PAGES if script_of(page)], ids=lambda page: page.name)
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(page, tmp_path):
    assert run(page, tmp_path) == promised_output(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file(page):
    targets = [link["target"] for link in LINK.finditer(FENCE.sub("", page.read_text()))]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page):
    named = [(match["file"], match["test"]) for match in NAMED_TEST.finditer(page.read_text())]
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not any(f"def {test}(" in path.read_text() for path in (ROOT / "tests").rglob(file))
    ]
    assert missing == []


def test_the_page_of_the_audit_has_the_table_of_verdicts():
    rows = VERDICT.finditer((ROOT / "docs" / "audit.md").read_text())
    shown = {row["verdict"]: (row["title"], int(row["code"])) for row in rows}
    assert shown == {verdict: (form.title, form.exit_code) for verdict, form in VERDICTS.items()}


def test_the_page_of_the_audit_has_its_attacks_in_order():
    attacks = (ROOT / "docs" / "audit.md").read_text().split("## The attacks")[1].split("## The checks")[0]
    plan = replace(audit_plan(square=1), extra=APGD())
    stages = plan.stages(["BPDA identity", "BPDA smooth", TRANSFERRED], escalated=2, before_gain=BEFORE_GAIN)
    assert re.findall(r"^\| `([^`]+)` \|", attacks, re.MULTILINE) == stages


def test_the_page_of_the_command_line_names_every_option_and_no_other():
    commands, known = [typer.main.get_command(app)], {"--help", "--nproc-per-node"}
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        known |= {name for name in options if name.startswith("--")}
    assert {match[0] for match in OPTION.finditer((ROOT / "docs" / "cli.md").read_text())} == known


def test_a_block_is_cut_out_with_its_line_numbers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# T\n\n```python\na = 1\n```\n\n```python no-run\nb\n```\n\n```text output\n1\n```\n")
    assert script_of(page) == "\n\n\na = 1"
    assert promised_output(page) == "1\n"


def test_code_that_fails_or_prints_something_else_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(2)\n```\n\n```text output\n1\n```\n")
    assert run(page, tmp_path) != promised_output(page)
    page.write_text("```python\n1 / 0\n```\n")
    with pytest.raises(AssertionError, match=r"line 2, in <module>(.|\n)*ZeroDivisionError"):
        run(page, tmp_path)


def test_the_tables_are_those_of_the_measurements():
    """README, docs/attacks.md and docs/improve.md show what benchmarks/results says."""
    ended = subprocess.run([sys.executable, "tools/tables.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_rounds_on_the_same_images_make_no_table():
    check = runpy.run_path(str(ROOT / "tools" / "tables.py"))["check"]

    def rounds(*firsts, **settings):
        return [{"settings": {"first": first, "images": 70, "code": "a", **settings}} for first in firsts]

    attacks = ("reference", "autoattack", "fast")
    check("net", {attack: rounds(5000, 5070) for attack in attacks})
    with pytest.raises(SystemExit, match="net: rounds need images of their own"):
        check("net", {attack: rounds(5000, 5000) for attack in attacks})
    with pytest.raises(SystemExit, match="rounds need"):
        check("net", {attack: rounds(5000, 5070)[: 1 + (attack != "fast")] for attack in attacks})
    with pytest.raises(SystemExit, match="rounds need"):
        check("net", {attack: rounds(5000, 5070, threads=1 + (attack == "fast")) for attack in attacks})


def test_choices_are_shown_with_their_audit_and_candidates_with_what_limits_them():
    improvements = runpy.run_path(str(ROOT / "tools" / "tables.py"))["improvements"]

    def comparison(base, difference, **counts):
        return {"base_accuracy": base, "difference": difference, "interval": [difference - 0.02, 0.1], **counts}

    def candidate(label, count=500, unreliable=False):
        change = {"robust_change": comparison(0.3, 0.01), "unreliable": unreliable}
        return {"label": label, "cost": 2, "count": count, **change}

    tried = {"count": 500, "candidates": [candidate("mirror"), candidate("forge", count=250, unreliable=True)]}
    tried["notes"] = ["head was not tried: no refit was better on held-out calibration images"]
    robust = comparison(0.3, 0.05, gained=30, lost=5, count=500, robust_both=145)
    judged = {"verdict": "real", "clean": comparison(0.8, 0.01), "union": robust}
    judged |= {"base_early_stopped": 90, "candidate_early_stopped": 100}
    one = {"eps": "8/255", "settings": {"first": 2000, "images": 500}, "chosen": "mirror"}
    fast = {"difference": robust, "after_audit": comparison(0.3, 0.04, gained=3, lost=1, count=50)}
    full = {**one, "improve": tried, "audit": judged, "fast": fast}
    found = {"b": {**one, "chosen": "nothing", "improve": tried}, "a": full, "a | given": {**one, "audit": judged}}
    cells = "| not kept | +1.0 [-1.0, +10.0], n = 250, unreliable | +1.0 [-1.0, +10.0] | not tried |"
    shown = "| a, 8/255 | 80.0 / 30.0 | mirror | 2 | +1.0 [-1.0, +10.0] | +5.0 [+3.0, +10.0] | 30, 5 | 500 |"
    attacked = "+5.0 [+3.0, +10.0], 30 gained, 5 lost | 500 | +4.0 [+2.0, +10.0], 3 gained, 1 lost | 50 |"
    assert [table.splitlines()[2:] for table in improvements(found).values()] == [
        [f"{shown} 90 of 150, 100 of 175 | `real` |", "| b, 8/255 |  | nothing | 1 |  |  |  |  |  | not audited |"],
        [f"| a, 8/255 | 30.0 | {attacked}"],
        [f"| a, 8/255, 500 {cells}", f"| b, 8/255, 500 {cells}"],
    ]
    found["b"]["settings"] = {"first": 0, "images": 500}
    with pytest.raises(SystemExit, match="all models need the same test images"):
        improvements(found)


def test_autoattack_is_counted_image_by_image_beside_the_audit():
    autoattacked = runpy.run_path(str(ROOT / "tools" / "tables.py"))["autoattacked"]

    def round_of(seed, *robust, images=100):
        return {"settings": {"first": 2000 + 100 * seed, "images": images}, "robust_images": robust}

    union = {
        "count": 500,
        "gained_images": [7, 150, 200],
        "lost_images": [250],
    }  # from image 2000 on; the last two were not attacked
    one = {"eps": "8/255", "settings": {"first": 2000}, "chosen": "mirror", "audit": {"union": union}}
    measured = {
        "net | reference | seed 0": round_of(0, 1, 2),
        "net | reference | seed 1": round_of(1, 7, 50),  # not images 7 and 50 of the other round
        "net, mirror | reference | seed 0": round_of(0, 1, 2, 7),
        "net, mirror | reference | seed 1": round_of(1, 50),
    }
    cells = [row[1:] for row in autoattacked("net", one, measured)]
    assert cells[0] == ["`pyautoattack` standard", "4", "4", "1, 1", "+0.0 [-2.3, +2.3]", "200"]
    assert cells[1][:4] == ["all attacks of the audit", "", "", "2, 0"]
    assert len(cells) == 2
    measured["net | reference | seed 1"] = round_of(1, 7, images=50)
    with pytest.raises(SystemExit, match="base and choice need the same images and settings of reference on net"):
        autoattacked("net", one, measured)
    with pytest.raises(SystemExit, match=r"net has no audit in improve\.json"):
        autoattacked("net", {"chosen": "nothing"}, measured)
    union["count"] = 150
    measured["net | reference | seed 1"] = round_of(1, 7)
    with pytest.raises(SystemExit, match="reference on net needs images of the audit"):
        autoattacked("net", one, measured)
