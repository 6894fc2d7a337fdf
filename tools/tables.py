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

from lipforge.statistics import paired_interval
from lipforge.text import points_text

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = {
    "README.md": {"speed"},
    "docs/attacks.md": {"speed", "strength", "passes"},
    "docs/improve.md": {"audits", "attacked", "validated", "autoattacked"},
}
MARKED = re.compile(r"(<!-- ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
ATTACKS = ("autoattack", "fast")
TOOLS = {"reference": "`pyautoattack` standard", "autoattack": "`autoattack`"}
CANDIDATES = {
    "head": "head", "forge": "forge 2^-7", "mirror": "mirror", "mirror x diagonals": "mirror x diagonals"
}  # fmt: skip


def main() -> None:
    made = tables()
    for name, expected in PAGES.items():
        page = ROOT / name
        text = page.read_text()
        marks = {found[2] for found in MARKED.finditer(text)}
        if marks != expected:
            raise SystemExit(f"{name} must have places for the tables {sorted(expected)}, has {sorted(marks)}")
        new = MARKED.sub(lambda found: f"{found[1]}{made[found[2]]}{found[3]}", text)
        if "--check" not in sys.argv:
            page.write_text(new)
        elif new != text:
            raise SystemExit(f"{name} shows other tables than {RESULTS.name}: run python tools/tables.py")


def tables() -> dict[str, str]:
    """All tables in Markdown, by their marks."""
    files = ("autoattack.json", "passes.json", "improve.json", "tta.json")
    measured, passed, improved, attacked_with = (json.loads((RESULTS / name).read_text()) for name in files)
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
        **improvements(improved),
        "autoattacked": table(
            ("Model, eps", "Attack", "base robust", "changed robust", "gained, lost", "robust change", "n"),
            [
                row
                for name, one in improved.items()
                if of(name, "reference", attacked_with)
                for row in autoattacked(name, one, attacked_with)
            ],
        ),
    }


def improvements(results: Mapping[str, Any]) -> dict[str, str]:
    """What `improve` chose: the audit of each choice, `fast` on it, and candidates on the images that chose it."""
    audits = (
        "Model, eps", "base clean / robust", "Chosen", "Passes", "clean change", "robust change", "gained, lost", "n",
        "Stopped early", "Verdict",
    )  # fmt: skip
    found = {name: one for name, one in results.items() if "improve" in one}  # without choices that were given
    images = {name: [one["settings"][key] for key in ("first", "images")] for name, one in found.items()}
    if len({tuple(each) for each in images.values()}) > 1:
        raise SystemExit(f"improve.json: all models need the same test images: {images}")
    ordered = sorted(found.items(), key=lambda item: -gain(item[1]))
    return {
        "audits": table(audits, [audited(name, one) for name, one in ordered]),
        "attacked": table(
            (
                "Model, eps",
                "base robust, all images",
                "robust change",
                "n",
                "on images that the audit had not used",
                "n",
            ),
            [attacked(name, one) for name, one in ordered if "audit" in one],
        ),
        "validated": table(("Model, eps, n", *CANDIDATES.values()), [validated(name, one) for name, one in ordered]),
    }


def gain(one: Mapping[str, Any]) -> float:
    return float(one["audit"]["union"]["difference"]) if "audit" in one else -1.0


def audited(name: str, one: Mapping[str, Any]) -> list[str]:
    """One model: the choice, and what the audit says of it."""
    if "audit" not in one:
        return [f"{name}, {one['eps']}", "", one["chosen"], "1", "", "", "", "", "", "not audited"]
    report = one["audit"]
    clean, robust = report["clean"], report["union"]
    before = f"{100 * clean['base_accuracy']:.1f} / {100 * robust['base_accuracy']:.1f}"
    passes = next(score["cost"] for score in one["improve"]["candidates"] if score["label"] == one["chosen"])
    judged = (change(clean), change(robust), f"{robust['gained']}, {robust['lost']}", f"{robust['count']:,}")
    left = (robust["robust_both"] + robust[key] for key in ("lost", "gained"))
    early = (report[f"{side}_early_stopped"] for side in ("base", "candidate"))
    stopped = ", ".join(f"{part} of {all_}" for part, all_ in zip(early, left, strict=True))
    return [f"{name}, {one['eps']}", before, one["chosen"], str(passes), *judged, stopped, f"`{report['verdict']}`"]


def attacked(name: str, one: Mapping[str, Any]) -> list[str]:
    """One model: what `fast` says of the choice on all images, and on those that the audit did not use."""
    found = one["fast"]
    everything, rest = found["difference"], found.get("after_audit")
    cells = [f"{100 * everything['base_accuracy']:.1f}", counted(everything), f"{everything['count']:,}"]
    return [f"{name}, {one['eps']}", *cells, *(("", "0") if rest is None else (counted(rest), f"{rest['count']:,}"))]


def validated(name: str, one: Mapping[str, Any]) -> list[str]:
    """One model: the candidates on the images that chose among them."""
    tried = one["improve"]
    scores, count = {score["label"]: score for score in tried["candidates"]}, tried["count"]

    def cell(label: str) -> str:
        if label not in scores:
            return "not kept" if any(note.startswith(f"{label} ") for note in tried["notes"]) else "not tried"
        score = scores[label]
        few = "" if score["count"] == count else f", n = {score['count']:,}"
        return f"{change(score['robust_change'])}{few}{', unreliable' if score['unreliable'] else ''}"

    return [f"{name}, {one['eps']}, {count:,}", *map(cell, CANDIDATES)]


def autoattacked(name: str, one: Mapping[str, Any], measured: dict[str, Any]) -> list[list[str]]:
    """One model: AutoAttack on base and choice, and the audit of the same images."""
    if "audit" not in one:
        raise SystemExit(f"tta.json: {name} has no audit in improve.json to compare with")
    label, rows, images = f"{name}, {one['eps']}", [], set[int]()
    union, first = one["audit"]["union"], one["settings"]["first"]
    for attack, tool in TOOLS.items():
        base, changed = (of(each, attack, measured) for each in (name, f"{name}, {one['chosen']}"))
        if not base and not changed:
            continue
        if [each["settings"] for each in base] != [each["settings"] for each in changed]:
            raise SystemExit(f"tta.json: base and choice need the same images and settings of {attack} on {name}")
        found = attacked_images(base)
        if not found <= set(range(first, first + union["count"])) or (images and found != images):
            raise SystemExit(f"tta.json: {attack} on {name} needs images of the audit, and the same for every attack")
        images, before, after = found, positions(base), positions(changed)
        rows.append([label, tool, *map(str, map(len, (before, after))), *differing(before, after, len(images))])
    before, after = ({first + i for i in union[f"{kind}_images"]} & images for kind in ("lost", "gained"))
    return [*rows, [label, "all attacks of the audit", "", "", *differing(before, after, len(images))]]


def attacked_images(found: Sequence[Mapping[str, Any]]) -> set[int]:
    """The positions of the images of all rounds."""
    settings = [one["settings"] for one in found]
    return {one["first"] + i for one in settings for i in range(one["images"])}


def positions(found: Sequence[Mapping[str, Any]]) -> set[int]:
    """The images of all rounds that stay robust."""
    return {one["settings"]["first"] + each for one in found for each in one["robust_images"]}


def differing(before: set[int], after: set[int], count: int) -> list[str]:
    """Images that are robust only after, and only before, and the difference; for a fixed number of images."""
    gained, lost = len(after - before), len(before - after)
    interval = paired_interval(gained, lost, count)
    return [f"{gained}, {lost}", points_text((gained - lost) / count, interval), str(count)]


def change(found: Mapping[str, Any]) -> str:
    return points_text(found["difference"], found["interval"])


def counted(found: Mapping[str, Any]) -> str:
    return f"{change(found)}, {found['gained']} gained, {found['lost']} lost"


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
