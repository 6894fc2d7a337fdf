"""The audit: its sentence first, its evidence further down."""

from dataclasses import dataclass
from typing import Literal

from lipforge.progress import duration
from lipforge.reports.blocks import Block, Figure, Grid, Prose, Section, Verdict
from lipforge.reports.charts import Axis, Bar, Row, Rows
from lipforge.reports.parsed import is_base, robust_results
from lipforge.reports.read import DamageError, Fields, Run
from lipforge.reports.tables import Column, Share, Table
from lipforge.reports.text import percent

Tone = Literal["good", "bad", "doubt", "calm"]
WORDS: dict[str, tuple[str, str, Tone]] = {
    "real": ("Real gain", "✓", "good"),
    "not real": ("Gain not real", "✕", "bad"),
    "harmful": ("Harmful", "▼", "bad"),
    "no change": ("No change", "=", "calm"),
    "undecided": ("Undecided", "?", "doubt"),
}
PASSED = {True: "passed", False: "FAILED", None: "does not apply"}


@dataclass(frozen=True)
class Paired:
    """A comparison of the two sides on the same images."""

    count: int
    base: float
    candidate: float
    difference: Share
    gained: int
    lost: int
    p_value: float


@dataclass(frozen=True)
class Audit:
    """An audit. Rows are (attack, base, candidate, difference, gradients of each), checks (name, passed, evidence)."""

    verdict: str
    sentence: str
    doubts: tuple[str, ...]
    model: str
    data: str
    threat: str
    count: int
    seed: int
    plain_attack: str
    paired: dict[str, Paired]
    rows: tuple[tuple[str, int, int, float, float | None, float | None], ...]
    checks: tuple[tuple[str, bool | None, str], ...]
    efforts: tuple[tuple[str, int, int, float], ...]
    notes: tuple[str, ...]
    seconds: float


def verdict(run: Run) -> Section | None:
    """What the audit says; without one, that nobody has asked yet."""
    audits = run.parsed("audit", parse_audit)
    if audits:
        title = "Verdict" if len(audits) == 1 else "Verdicts"
        return Section("verdict", title, "", tuple(_verdict(audit, alone=len(audits) == 1) for audit in audits))
    found = robust_results(run)
    if any(is_base(result.label) for result in found) and any(not is_base(result.label) for result in found):
        text = (
            "This run holds no audit. Whether a difference between base and forged below is real is open: "
            "masks can hide gradients from the attacks that were run."
        )
        return Section("verdict", "Verdict", "", (Verdict("Not audited", "?", "doubt", text),))
    return None


def _verdict(audit: Audit, *, alone: bool) -> Verdict:
    word, sign, tone = WORDS.get(audit.verdict, (audit.verdict, "?", "doubt"))
    sentence = audit.sentence.removeprefix(f"{audit.verdict}: ")
    if sentence.startswith(("+", "-")):
        sentence = f"The difference is {sentence}"
    asked = f"{audit.model or 'the model'}, {audit.threat}, {audit.count:,} images of {audit.data}, seed {audit.seed}"
    failed = [name for name, passed, _ in audit.checks if passed is False]
    details = (asked, *(f"Doubt: {doubt}" for doubt in audit.doubts))
    if failed:
        details += (f"{len(failed)} of {len(audit.checks)} checks failed: {'; '.join(failed)}",)
    return Verdict(
        word if alone else f"{word}, {audit.threat}", sign, tone, sentence[:1].upper() + sentence[1:], details
    )


def evidence(run: Run) -> Section | None:
    """The attacks and checks that the verdict rests on."""
    audits = run.parsed("audit", parse_audit)
    blocks: list[Block] = []
    for audit in audits:
        blocks += [_figure(audit), Grid(_paired(audit)), Grid(_checks(audit)), Grid(_efforts(audit))]
        if audit.notes:
            blocks.append(Prose("Notes of the attacks:", audit.notes))
    lead = (
        "Both sides face the same attacks with the same random starts. Each line counts the images that stand after "
        "that attack and all above it, so the last line is the union, the figure that counts."
    )
    return Section("audit", "What the verdict rests on", lead, tuple(blocks)) if blocks else None


def _figure(audit: Audit) -> Figure:
    rows = []
    for attack, base, candidate, *_ in audit.rows:
        bars = [
            Bar(role, 0, left, f"{name} after {attack}: {left} of {audit.count} ({percent(left / audit.count)} %)",
                f"{left}")
            for role, name, left in (("base", "base", base), ("forged", "candidate", candidate))
        ]  # fmt: skip
        rows.append(Row(attack, tuple(bars)))
    last = f"; at the end base {audit.rows[-1][1]}, candidate {audit.rows[-1][2]}" if audit.rows else ""
    chart = Rows(
        alt=f"Images of {audit.count} left standing after each attack of the audit{last}.",
        x=Axis("images left standing", (0.0, float(audit.count)), whole=True),
        rows=tuple(rows),
        legend=(("base", "base"), ("forged", "candidate")),
    )
    columns = (Column("after"), Column("base", "count"), Column("candidate", "count"),
               Column("difference (points)", "points"), Column("gradients, base", "count"),
               Column("gradients, candidate", "count"))  # fmt: skip
    cells = tuple((attack, base, candidate, Share(gap), *spent) for attack, base, candidate, gap, *spent in audit.rows)
    table = Table("audit-attacks", f"Images left standing after each attack, {audit.threat}", columns, cells)
    return Figure(f"Images left standing, attack by attack ({audit.threat}, {audit.count:,} images).", (chart,), table)


def _paired(audit: Audit) -> Table:
    columns = (Column("on"), Column("n", "count"), Column("base", "share"), Column("candidate", "share"),
               Column("difference (points)", "points"), Column("gained", "count"), Column("lost", "count"),
               Column("p", "number"))  # fmt: skip
    names = {"clean": "clean images", "plain": f"plain: {audit.plain_attack}", "union": "all attacks together"}
    rows = tuple(
        (names[name], p.count, Share(p.base), Share(p.candidate), p.difference, p.gained, p.lost, p.p_value)
        for name, p in audit.paired.items()
    )
    return Table("audit-paired", "Paired comparison, image by image", columns, rows)


def _checks(audit: Audit) -> Table:
    rows = tuple((name, PASSED[passed], text) for name, passed, text in audit.checks)
    return Table("audit-checks", "Checklist against masked gradients",
                 (Column("check"), Column("outcome"), Column("evidence")), rows)  # fmt: skip


def _efforts(audit: Audit) -> Table:
    columns = (Column("side"), Column("forward passes", "count"), Column("gradients", "count"),
               Column("gradients per standing image", "number"))  # fmt: skip
    title = f"What the audit spent on each side, in {duration(audit.seconds)} of device time"
    return Table("audit-effort", title, columns, audit.efforts)


def parse_audit(fields: Fields) -> Audit:
    """An audit from its JSON."""
    return Audit(
        verdict=fields.text("verdict"),
        sentence=fields.text("sentence"),
        doubts=fields.texts("doubts"),
        model=fields.text("model", ""),
        data=fields.text("data", ""),
        threat=fields.text("threat"),
        count=fields.whole("count"),
        seed=fields.whole("seed"),
        plain_attack=fields.text("plain_attack", "the plain attack"),
        paired={name: _parse_paired(fields.inner(name)) for name in ("clean", "plain", "union") if fields.has(name)},
        rows=tuple(_parse_row(row) for row in fields.each("rows")),
        checks=tuple((row.text("name"), _passed(row), row.text("evidence")) for row in fields.each("checks")),
        efforts=tuple(
            (side, effort.whole("forwards"), effort.whole("backwards"), effort.number("per_standing"))
            for side in ("base", "candidate")
            if fields.has(f"{side}_effort")
            for effort in [fields.inner(f"{side}_effort")]
        ),
        notes=fields.texts("notes"),
        seconds=fields.number("seconds"),
    )


def _parse_row(row: Fields) -> tuple[str, int, int, float, float | None, float | None]:
    stands = row.whole("base"), row.whole("candidate")
    spent = row.optional("base_gradients"), row.optional("candidate_gradients")
    return row.text("attack"), *stands, row.number("difference"), *spent


def _passed(row: Fields) -> bool | None:
    value = row.values.get("passed")
    if value is not None and not isinstance(value, bool):
        raise DamageError(f"{row.where}: 'passed' must be true, false or null, got {value!r}")
    return value


def _parse_paired(fields: Fields) -> Paired:
    return Paired(
        count=fields.whole("count"),
        base=fields.number("base_accuracy"),
        candidate=fields.number("forged_accuracy"),
        difference=Share(fields.number("difference"), fields.interval("interval")),
        gained=fields.whole("gained"),
        lost=fields.whole("lost"),
        p_value=fields.number("p_value"),
    )
