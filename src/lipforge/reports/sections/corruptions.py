"""Accuracy under common corruptions: over the severity, by corruption, and compared."""

from collections.abc import Sequence

from lipforge.reports.blocks import Block, Figure, Grid, Prose, Section
from lipforge.reports.charts import Axis, Lines, Point, Series, percent_axis
from lipforge.reports.read import Run, base_first, grouped, roles
from lipforge.reports.tables import Cell, Column, Share, Table, columns
from lipforge.results import CorruptComparison, CorruptResult
from lipforge.text import share_text


def corrupted(run: Run) -> Section:
    """One figure per source of images, and the paired comparisons by corruption."""
    found = sorted(run.of(CorruptResult), key=base_first)
    groups = grouped([one for one in found if one.cells], "source", "data", "seed", "corruptions", "severities")
    blocks: list[Block] = [_figure(same) for same in groups.values()]
    pairs = run.of(CorruptComparison)
    blocks += [Grid(_pair_table(pair)) for pair in pairs]
    if pairs:
        blocks.append(Prose("Paired, over the same images (percentage points):", tuple(map(str, pairs))))
    if notes := tuple(dict.fromkeys(note for one in found for note in one.notes)):
        blocks.append(Prose("Notes:", notes))
    lead = (
        "The 15 standard corruptions at severities 1 to 5. No attack is involved. Intervals of means are over the "
        "images, each of which is in every cell."
    )
    return Section("corrupt", "Common corruptions", lead, tuple(blocks))


def _figure(same: Sequence[CorruptResult]) -> Figure:
    colours, first = roles(one.label for one in same), same[0]
    series = []
    for one in same:
        means = [(0, (one.clean_accuracy, one.clean_interval)), *((step, one.at(step)) for step in one.severities)]
        points = tuple(
            Point(step, share, f"{one.label}, severity {step}: {share_text(share, interval)} %", interval)
            for step, (share, interval) in means
        )
        series.append(Series(one.label, colours[one.label], points))
    chart = Lines(
        "Mean accuracy over the corruptions by severity. " + "; ".join(map(str, same)) + ".",
        Axis("severity", (0.0, 5.0), marks=((0.0, "clean"), *((float(step), str(step)) for step in first.severities))),
        percent_axis("accuracy, %"),
        tuple(series),
    )
    about = f"{len(first.corruptions)} corruptions ({first.source})"
    caption = f"Mean accuracy over {about} by severity, with 95 % intervals, n = {first.count:,}."
    heading = (*columns("corruption"), *(Column(one.label, "share") for one in same))
    rows: list[tuple[Cell, ...]] = [("clean", *(Share(one.clean_accuracy, one.clean_interval) for one in same))]
    rows += [(name, *(Share(*one.accuracy_of(name)) for one in same)) for name in first.corruptions]
    rows.append(("mean", *(Share(one.mean_accuracy, one.mean_interval) for one in same)))
    if first.mce is not None:
        rows.append(("mCE relative to AlexNet, %", *(Share(one.mce or 0.0) for one in same)))
    title = f"Accuracy by corruption, mean of severities {', '.join(map(str, first.severities))}"
    return Figure(caption, (chart,), Table("corrupt", title, heading, tuple(rows)))


def _pair_table(pair: CorruptComparison) -> Table:
    heading = columns("corruption", "base:share", "candidate:share", "difference:points", "gained:count", "lost:count")
    rows = tuple(
        (part.corruption, Share(part.base_accuracy), Share(part.candidate_accuracy),
         Share(part.difference, part.interval), part.gained, part.lost)
        for part in pair.corruptions
    )  # fmt: skip
    title = f"{pair.candidate} against {pair.base}, by corruption (gained and lost: images and severities together)"
    return Table("corrupted", title, heading, rows)
