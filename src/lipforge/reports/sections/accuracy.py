"""Clean and robust accuracy, base against forged, with intervals."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from lipforge.reports.blocks import Block, Figure, Grid, Prose, Section
from lipforge.reports.charts import Axis, Bar, Row, Rows
from lipforge.reports.parsed import Robust, gained_lost, is_base, robust_results, roles
from lipforge.reports.read import Fields, Run
from lipforge.reports.tables import Column, Share, Table
from lipforge.reports.text import percent


def accuracy(run: Run) -> Section | None:
    """Every evaluation as a dot with its interval, a table, paired comparisons, and the doubts that were noted."""
    found = robust_results(run)
    comparisons = _comparisons(run)
    if not found and comparisons is None:
        return None
    blocks: list[Block] = [_figure(found), Grid(_table(found))] if found else []
    if comparisons is not None:
        note = "A gained image is robust only when forged, a lost one only in the base model. p: exact McNemar test."
        blocks.append(Grid(comparisons, note))
    doubts = [f"{result.label}, {result.attack}: {note}" for result in found for note in result.notes]
    if doubts:
        blocks.append(Prose("Reasons to doubt these numbers, as the attacks noted them:", tuple(doubts)))
    return Section("accuracy", "Clean and robust accuracy", _lead(found), tuple(blocks))


def _lead(found: Sequence[Robust]) -> str:
    counts = sorted({result.count for result in found})
    images = " and ".join(f"{count:,}" for count in counts)
    return (
        (f"Shares of {images} images. " if counts else "")
        + "An image counts as robust if it is classified correctly and no attack changed that. "
        "Bars are 95 % intervals; a paired comparison of the same images is the sharper figure."
    )


def _figure(found: Sequence[Robust]) -> Figure:
    colours = roles(result.label for result in found)
    clean = {(result.data, result.label, result.count): result for result in found}
    rows = [Row(f"clean, n = {n:,}", tuple(_bar(r, colours, clean=True) for r in same))
            for n, same in _grouped(clean.values()).items()]  # fmt: skip
    under: dict[tuple[str, str, int], list[Robust]] = defaultdict(list)
    for result in found:
        under[result.attack, result.threat, result.count].append(result)
    rows += [
        Row(f"{attack}, {threat}, n = {n:,}", tuple(_bar(r, colours) for r in same))
        for (attack, threat, n), same in under.items()
    ]
    said = "; ".join(f"{r.label} {percent(r.robust)} % under {r.attack} {r.threat}" for r in found)
    chart = Rows(
        alt=f"Accuracies with intervals. {said}.",
        x=Axis("accuracy, %", (0.0, 1.0), percent_tick),
        rows=tuple(rows),
        legend=tuple((role, label) for label, role in colours.items()),
        glyph="interval",
    )
    return Figure("Accuracy on clean images and under each attack, with 95 % intervals.", (chart,))


def percent_tick(share: float) -> str:
    """A tick of a percent axis."""
    return f"{100 * share:g}"


def _grouped(results: Iterable[Robust]) -> dict[int, list[Robust]]:
    groups: dict[int, list[Robust]] = defaultdict(list)
    for result in results:
        groups[result.count].append(result)
    return groups


def _bar(result: Robust, colours: dict[str, str], *, clean: bool = False) -> Bar:
    value, (low, high) = (result.clean, result.clean_interval) if clean else (result.robust, result.interval)
    what = "clean" if clean else f"{result.attack}, {result.threat}"
    tip = f"{result.label}, {what}: {percent(value)} % [{percent(low)}, {percent(high)}], n = {result.count:,}"
    return Bar(colours[result.label], low, high, tip, percent(value), at=value)


def _table(found: Sequence[Robust]) -> Table:
    columns = [Column("classifier"), Column("attack"), Column("threat"), Column("n", "count"), Column("seed", "count"),
               Column("clean", "share"), Column("robust", "share"), Column("gained", "count"),
               Column("lost", "count")]  # fmt: skip
    rows = []
    for result in found:
        base = next((other for other in found if is_base(other.label) and other.setting == result.setting), None)
        changes = gained_lost(base, result) if base is not None and base is not result else None
        rows.append(
            (result.label, result.attack, result.threat, result.count, result.seed,
             Share(result.clean, result.clean_interval), Share(result.robust, result.interval),
             *(changes or (None, None)))
        )  # fmt: skip
    title = "Clean and robust accuracy; gained and lost images are against the base model under the same attack"
    return Table("accuracy", title, tuple(columns), tuple(rows))


def _comparisons(run: Run) -> Table | None:
    rows = [
        (result.name.removeprefix("comparison").strip("_-") or "base and forged", *cells)
        for result in run.results
        if result.kind == "comparison"
        for cells in run.attempt(result, _comparison)
    ]
    columns = (Column("comparison"), Column("n", "count"), Column("base", "share"), Column("forged", "share"),
               Column("difference (points)", "points"), Column("gained", "count"), Column("lost", "count"),
               Column("p", "number"))  # fmt: skip
    return Table("paired", "Paired comparison on the same images", columns, tuple(rows)) if rows else None


def _comparison(fields: Fields) -> tuple[int | float | Share | None, ...]:
    return (
        fields.whole("count"),
        Share(fields.number("base_accuracy")),
        Share(fields.number("forged_accuracy")),
        Share(fields.number("difference"), fields.interval("interval")),
        fields.whole("gained"),
        fields.whole("lost"),
        fields.number("p_value"),
    )
