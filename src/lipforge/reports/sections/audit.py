"""The audit: its sentence first, its evidence further down."""

from lipforge.reports.blocks import Block, Figure, Grid, Prose, Section, Verdict
from lipforge.reports.charts import Bar, Row, Rows, percent_axis
from lipforge.reports.read import Run, is_base
from lipforge.reports.sections.evaluations import PAIRED, comparison_cells
from lipforge.reports.tables import Share, Table, columns
from lipforge.results import VERDICTS, AuditReport, corrected
from lipforge.text import duration, percent

PASSED = {True: "passed", False: "FAILED", None: "does not apply"}


def verdict(run: Run) -> Section:
    """What the audit says; without one, that nobody has asked yet."""
    audits = corrected(run.of(AuditReport))
    blocks = tuple(_verdict(audit, alone=len(audits) == 1) for audit in audits)
    if not audits and {is_base(result.label) for result in run.evaluations} == {True, False}:
        text = (
            "This run holds no audit. Whether a difference from the base below is real is open: "
            "masks can hide gradients from the attacks that were run."
        )
        blocks = (Verdict("Not audited", "?", "doubt", text),)
    return Section("verdict", "Verdicts" if len(audits) > 1 else "Verdict", "", blocks)


def _verdict(audit: AuditReport, *, alone: bool) -> Verdict:
    form = VERDICTS[audit.verdict]
    sentence = audit.sentence.removeprefix(f"{audit.verdict}: ")
    if sentence.startswith(("+", "-")):
        sentence = f"The difference is {sentence}"
    details = [f"{audit.model or 'the model'}, {audit.threat}, {audit.data}, n = {audit.count:,}, seed {audit.seed}"]
    details += [f"Failed check: {check}" for check in audit.failed_checks]
    if audit.early_stopped_text:
        details.append(audit.early_stopped_text.capitalize())
    word = form.title if alone else f"{form.title}, {audit.threat}"
    return Verdict(word, form.sign, form.tone, sentence[:1].upper() + sentence[1:], tuple(details))


def evidence(run: Run) -> Section:
    """The attacks and checks that the verdict rests on."""
    blocks: list[Block] = []
    for audit in run.of(AuditReport):
        blocks += [_figure(audit), *map(Grid, _tables(audit))]
        if audit.notes:
            blocks.append(Prose("Notes (reasons not to trust these numbers):", tuple(map(str, audit.notes))))
    lead = (
        "Both sides face the same attacks with the same random starts. Each row counts the images that are robust "
        "after that attack and all above it, so the last row is the union of all attacks, which decides the verdict."
    )
    return Section("audit", "Evidence for the verdict", lead, tuple(blocks))


def _figure(audit: AuditReport) -> Figure:
    rows, cells, n = [], [], audit.count or 1
    for row in audit.rows:
        sides = ("base", "base", row.base), ("forged", "candidate", row.candidate)
        bars = tuple(
            Bar(role, 0, robust / n, f"{name}: {robust} of {audit.count} robust after {row.attack}",
                percent(robust / n))
            for role, name, robust in sides
        )  # fmt: skip
        rows.append(Row(row.attack, bars))
        cells.append((row.attack, Share(row.base / n), Share(row.candidate / n), Share(row.difference),
                      row.base_gradients, row.candidate_gradients))  # fmt: skip
    last = f": in the end base {audit.rows[-1].base}, candidate {audit.rows[-1].candidate}" if audit.rows else ""
    chart = Rows(
        alt=f"Images of {audit.count} that are robust after each attack of the audit{last}.",
        x=percent_axis("% robust after the attack"),
        rows=tuple(rows),
        legend=(("base", "base"), ("forged", "candidate")),
    )
    heading = columns("robust after", "base:share", "candidate:share", "difference (points):points",
                      "gradients, base:count", "gradients, candidate:count")  # fmt: skip
    caption = f"Images that are robust after each attack and all above it, {audit.threat}, n = {audit.count:,}"
    return Figure(f"{caption}.", (chart,), Table("audit-attacks", caption, heading, tuple(cells)))


def _tables(audit: AuditReport) -> tuple[Table, Table, Table]:
    paired = (
        ("none: clean images", *comparison_cells(audit.clean)),
        (f"non-adaptive: {audit.non_adaptive_attack}", *comparison_cells(audit.non_adaptive)),
        ("union of all attacks", *comparison_cells(audit.union)),
    )
    checks = tuple((check.name, PASSED[check.passed], check.evidence) for check in audit.checks)
    efforts = tuple(
        (side, effort.forwards, effort.backwards, effort.per_robust_image)
        for side, effort in (("base", audit.base_effort), ("candidate", audit.candidate_effort))
    )
    spent = f"What the audit spent on each side, in {duration(audit.seconds)} of device time"
    effort_columns = columns("side", "forward passes:count", "gradients:count", "gradients per robust image:number")
    checklist = "Checklist against masked gradients"
    return (
        Table("audit-paired", "Paired comparison, image by image", (*columns("attack"), *PAIRED), paired),
        Table("audit-checks", checklist, columns("check", "outcome", "evidence"), checks),
        Table("audit-effort", spent, effort_columns, efforts),
    )
