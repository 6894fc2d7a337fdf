"""Put what benchmarks/results has measured into README.md and the docs, as tables between two marks.

    python tools/tables.py [--check]

With --check it writes nothing and fails if a page shows another table than the file.
"""

import itertools
import json
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "attacks.md")
MARKED = re.compile(r"(<!-- ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
ATTACKS = ("autoattack", "fast")


def main() -> None:
    made = tables()
    for page in PAGES:
        text = page.read_text()
        marks = [found[2] for found in MARKED.finditer(text)]
        if "speed" not in marks or not set(marks) <= set(made):
            raise SystemExit(
                f"{page.name} must have a place for the table of speeds and none for unknown ones: {marks}"
            )
        new = MARKED.sub(lambda found: f"{found[1]}{made[found[2]]}{found[3]}", text)
        if "--check" not in sys.argv:
            page.write_text(new)
        elif new != text:
            raise SystemExit(f"{page.name} shows other tables than {RESULTS.name}: run python tools/tables.py")


def tables() -> dict[str, str]:
    """All tables in Markdown, by their marks: speeds, robust images after each attack, and where the time goes."""
    measured, passed = (json.loads((RESULTS / name).read_text()) for name in ("autoattack.json", "passes.json"))
    names = dict.fromkeys(key.split(" | ")[0] for key in measured)
    speed = (
        "Model, eps", "clean", "robust: `pyautoattack` / `autoattack` / `fast`", "CPU seconds",
        "`autoattack` / reference", "reference / `fast`",
    )  # fmt: skip
    after = ("Model", "robust after APGD-CE, APGD-T, FAB-T, Square: reference", "`autoattack`")
    passes = (
        "Model", "ms per image, model: forward, backward", "folded copy", "time in products", "GFLOP/s there",
        "passes of `autoattack` / of reference", "lower bound: products only, at peak", "tests in `fast`",
    )  # fmt: skip
    return {
        "speed": table(speed, [row(name, measured) for name in names]),
        "strength": table(after, [strength(name, measured) for name in names]),
        "passes": table(passes, [cost(name, passed[name]) for name in names]),
    }


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(line)} |\n" for line in (head, *rows)]
    return "".join([lines[0], "|---" * len(head) + "|\n", *lines[1:]])


def strength(name: str, results: dict[str, Any]) -> list[str]:
    """One model: how many images each attack of AutoAttack leaves, reference and ours."""

    def left(attack: str, stages: Sequence[str]) -> str:
        found = of(name, attack, results)
        return ", ".join(str(sum(one["after"][stage] for one in found)) for stage in stages)

    ours = left("autoattack", ("apgd", "apgd-t", "fab", "square"))
    return [name, left("reference", ("apgd-ce", "apgd-t", "fab-t", "square")), ours]


def cost(name: str, one: Mapping[str, Any]) -> list[str]:
    """One model: its passes, and what follows from them."""
    plain, folded = (f"{forward:.2f}, {backward:.2f}" for forward, backward in (one["ms"][:2], one["ms"][2:]))
    inside = f"{100 * one['in_products']:.0f} %", f"{one['gflops_in_products']:.0f}"
    shares = (f"{one[key]:.2f}" for key in ("passes_of_reference", "passes_at_peak"))
    return [name, plain, folded, *inside, *shares, f"{100 * one['tests_in_fast']:.0f} %"]


def row(name: str, results: dict[str, Any]) -> list[str]:
    """One model: images and seconds of all rounds together, and the ratios of each round, median [range]."""
    by = {attack: of(name, attack, results) for attack in ("reference", *ATTACKS)}
    check(name, by)
    reference, standard, fast = ([one["seconds"] for one in found] for found in by.values())
    clean = sum(one["clean"] for one in by["reference"])
    images = sum(one["settings"]["images"] for one in by["reference"])
    cells = [f"{name}, {by['reference'][0]['settings']['eps']}", f"{clean} of {images}"]
    cells.append(" / ".join(str(sum(one["robust"] for one in found)) for found in by.values()))
    cells.append(" / ".join(map(seconds, (reference, standard, fast))))
    cells.append(ratio([ours / theirs for ours, theirs in zip(standard, reference, strict=True)], ".2f"))
    cells.append(ratio([theirs / ours for ours, theirs in zip(fast, reference, strict=True)], ".0f"))
    return cells


def check(name: str, by: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Every round must have all attacks, on images that no other round has, under the same settings."""
    ranges = {attack: [one["settings"]["first"] for one in found] for attack, found in by.items()}
    sizes = {one["settings"]["images"] for found in by.values() for one in found}
    others = {json.dumps({**one["settings"], "first": 0, "code": ""}) for found in by.values() for one in found}
    codes = {one["settings"].get("code") for attack in ATTACKS for one in by[attack]}
    firsts = sorted(ranges["reference"])
    apart = all(later - first >= max(sizes) for first, later in itertools.pairwise(firsts))
    if len({tuple(each) for each in ranges.values()}) > 1 or len(others) > 1 or len(codes) > 1 or not apart:
        raise SystemExit(f"{name}: rounds need images of their own, and all attacks the same settings: {ranges}")


def of(name: str, attack: str, results: dict[str, Any]) -> list[dict[str, Any]]:
    """The measurements of one attack on one model, by seed."""
    return [found for key, found in sorted(results.items()) if key.startswith(f"{name} | {attack} | ")]


def seconds(found: Sequence[float]) -> str:
    total = sum(found)
    return f"{total:,.0f}" if total >= 100 else f"{total:.3g}"


def ratio(found: Sequence[float], digits: str) -> str:
    spread = f" [{min(found):{digits}}, {max(found):{digits}}]" if len(found) > 1 else ""
    return f"{statistics.median(found):{digits}}{spread}"


if __name__ == "__main__":
    main()
