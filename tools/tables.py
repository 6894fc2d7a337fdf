"""Put the table of benchmarks/results/autoattack.json into README.md and docs/attacks.md, between its two marks.

    python tools/tables.py [--check]

With --check it writes nothing and fails if a page shows another table than the file.
"""

import json
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "autoattack.json"
PAGES = (ROOT / "README.md", ROOT / "docs" / "attacks.md")
MARKED = re.compile(r"(<!-- autoattack.json -->\n).*?(<!-- end -->)", re.DOTALL)
ATTACKS = ("autoattack", "fast")
HEAD = (
    "Model, eps", "clean", "robust: `pyautoattack` / `autoattack` / `fast`", "CPU seconds",
    "`autoattack` / reference", "reference / `fast`",
)  # fmt: skip


def main() -> None:
    made = table(json.loads(RESULTS.read_text()))
    for page in PAGES:
        text = page.read_text()
        new, count = MARKED.subn(lambda found: f"{found[1]}{made}{found[2]}", text)
        if count != 1:
            raise SystemExit(f"{page.name} must have one place for the table of {RESULTS.name}, got {count}")
        if "--check" not in sys.argv:
            page.write_text(new)
        elif new != text:
            raise SystemExit(f"{page.name} shows another table than {RESULTS.name}: run python tools/tables.py")


def table(results: dict[str, Any]) -> str:
    """The table in Markdown, one row per model in the file's order."""
    names = dict.fromkeys(key.split(" | ")[0] for key in results)
    rows = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|", *(row(name, results) for name in names)]
    return "\n".join(rows) + "\n"


def row(name: str, results: dict[str, Any]) -> str:
    """One model: counts of all seeds, median seconds, and the ratios of each round, median [range]."""
    by = {attack: of(name, attack, results) for attack in ("reference", *ATTACKS)}
    first, reference = by["reference"][0], [one["seconds"] for one in by["reference"]]
    cells = [f"{name}, {first['settings']['eps']}", f"{first['clean']} of {first['settings']['images']}"]
    cells.append(" / ".join(counts([one["robust"] for one in found]) for found in by.values()))
    cells.append(" / ".join(seconds([one["seconds"] for one in found]) for found in by.values()))
    pairs = {
        attack: list(zip(by[attack], reference, strict=False)) for attack in ATTACKS
    }  # by seed, as both are sorted
    cells.append(ratio([ours["seconds"] / theirs for ours, theirs in pairs["autoattack"]], ".2f"))
    cells.append(ratio([theirs / ours["seconds"] for ours, theirs in pairs["fast"]], ".0f"))
    return f"| {' | '.join(cells)} |"


def of(name: str, attack: str, results: dict[str, Any]) -> list[dict[str, Any]]:
    """The measurements of one attack on one model, by seed."""
    return [found for key, found in sorted(results.items()) if key.startswith(f"{name} | {attack} | ")]


def counts(found: Sequence[int]) -> str:
    return ", ".join(map(str, found)) if len(set(found)) > 1 else str(found[0]) if found else "not run"


def seconds(found: Sequence[float]) -> str:
    if not found:
        return "not run"
    middle = statistics.median(found)
    return f"{middle:,.0f}" if middle >= 100 else f"{middle:.3g}"


def ratio(found: Sequence[float], digits: str) -> str:
    if not found:
        return "not run"
    spread = f" [{min(found):{digits}}, {max(found):{digits}}]" if len(found) > 1 else ""
    return f"{statistics.median(found):{digits}}{spread}"


if __name__ == "__main__":
    main()
