"""Accuracy over the ratio c_r: what the search saw, and what it chose."""

from collections.abc import Sequence
from dataclasses import dataclass

from lipforge.reports.blocks import Block, Figure, Prose, Section
from lipforge.reports.charts import Axis, Lines, Point, Series
from lipforge.reports.read import Fields, Run
from lipforge.reports.sections.accuracy import percent_tick
from lipforge.reports.tables import Cell, Column, Share, Table
from lipforge.reports.text import percent, ratio_text

LONG = 7
"""Longer names of settings, such as one ratio per group of sites, get a number on the axis and stand in the table."""


@dataclass(frozen=True)
class Score:
    """One setting; a measure that was not taken is missing from `shares`. `counts` are further columns.

    A `grouped` setting has a ratio per group of sites, so it has no place among the rising ratios.
    """

    label: str
    base: bool
    chosen: bool
    shares: dict[str, Share]
    grouped: bool = False
    counts: tuple[Cell, ...] = ()


@dataclass(frozen=True)
class Tradeoff:
    """Settings by rising ratio, base first, with the measures that were taken on them."""

    title: str
    scores: tuple[Score, ...]
    remarks: tuple[str, ...]
    columns: tuple[Column, ...] = ()


def tradeoff(run: Run) -> Section | None:
    """One figure per search, a panel per measure, with the base model as a level line."""
    blocks: list[Block] = []
    for search in run.parsed("search", parse_search):
        if search.scores:
            blocks.append(_figure(search))
        if search.remarks:
            blocks.append(Prose("What the search says:", search.remarks))
    lead = (
        "A larger ratio forges more activations. The dotted line is the level of the base model; "
        "a point above it is a gain on these images under these attacks, no more."
    )
    return Section("tradeoff", "Trade-off over the ratio", lead, tuple(blocks)) if blocks else None


def _figure(search: Tradeoff) -> Figure:
    measures = list(dict.fromkeys(name for score in search.scores for name in score.shares))
    chosen = next((f" Chosen: {score.label}." for score in search.scores if score.chosen), "")
    charts = tuple(_panel(search.scores, name) for name in measures)
    return Figure(f"{search.title}.{chosen}", charts, _table(search, measures))


def _panel(scores: Sequence[Score], name: str) -> Lines:
    taken = [(place, score) for place, score in enumerate(scores, 1) if name in score.shares]
    points = [
        Point(at, score.shares[name].value, _tip(name, score), score.shares[name].interval)
        for at, (_, score) in enumerate(taken)
    ]
    base = [point for point, (_, score) in zip(points, taken, strict=True) if score.base]
    forged = [point for point, (_, score) in zip(points, taken, strict=True) if not score.base and not score.grouped]
    grouped = [point for point, (_, score) in zip(points, taken, strict=True) if score.grouped]
    values = [value for point in points for value in (point.y, *(point.interval or ()))]
    air = max(0.1 * (max(values) - min(values)), 0.02)
    marks = tuple((float(at), _mark(place, score)) for at, (place, score) in enumerate(taken))
    said = ", ".join(f"{score.label} {percent(score.shares[name].value)} %" for _, score in taken)
    star = " (* chosen)" if any(score.chosen for score in scores) else ""
    return Lines(
        alt=f"{name} over the ratio: {said}.",
        x=Axis("ratio c_r" + star, (-0.5, len(taken) - 0.5), marks=marks),
        y=Axis("%", (max(min(values) - air, 0.0), min(max(values) + air, 1.0)), percent_tick),
        series=tuple(
            Series(role, role, tuple(some), joined=joined)
            for role, some, joined in (("base", base, True), ("forged", forged, True), ("forged", grouped, False))
            if some
        ),
        height=250.0,
        title=name,
        level=base[0].y if base else None,
    )


def _mark(place: int, score: Score) -> str:
    return (score.label if len(score.label) <= LONG else f"#{place}") + ("*" if score.chosen else "")


def _tip(name: str, score: Score) -> str:
    share = score.shares[name]
    inner = f" [{percent(share.interval[0])}, {percent(share.interval[1])}]" if share.interval else ""
    return f"{score.label}{', chosen' if score.chosen else ''}: {name} {percent(share.value)} %{inner}"


def _table(search: Tradeoff, measures: Sequence[str]) -> Table:
    columns = (Column("#", "count"), Column("ratio"), *(Column(name, "share") for name in measures), *search.columns)
    rows: list[tuple[Cell, ...]] = [
        (place, score.label + (" (chosen)" if score.chosen else ""), *(score.shares.get(name) for name in measures),
         *score.counts)
        for place, score in enumerate(search.scores, 1)
    ]  # fmt: skip
    return Table("tradeoff", search.title, columns, tuple(rows))


def parse_search(fields: Fields) -> Tradeoff:
    """A search from its JSON."""
    scores = [_score(row, fields.values.get("chosen")) for row in fields.each("scores")]
    about = ", ".join(text for name in ("metric", "attack", "threat", "data") if (text := fields.text(name, "")))
    columns = (Column("status"), Column("n attacked", "count"), Column("gained", "count"), Column("lost", "count"))
    remarks = (fields.text("reason", ""), *fields.texts("notes"))
    title = "Candidates of the search" + (f" ({about})" if about else "")
    return Tradeoff(title, tuple(scores), tuple(remark for remark in remarks if remark), columns)


def _score(row: Fields, chosen: object) -> Score:
    ratio = row.values.get("ratio")
    shares = {"clean accuracy": Share(row.number("clean_accuracy"), row.interval("clean_interval"))}
    if row.has("robust_accuracy"):
        shares["robust accuracy"] = Share(row.number("robust_accuracy"), row.interval("interval"))
    paired = row.inner("against_base") if row.has("against_base") else None
    changes = (paired.whole("gained"), paired.whole("lost")) if paired else (None, None)
    # A ratio per group of sites is an object; its label says it in words.
    grouped = isinstance(ratio, dict)
    label = row.text("label") if grouped else row.text("label", _named(row.number("ratio")))
    counts = (row.text("status", ""), row.optional("count"), *changes)
    return Score(label, not ratio, ratio == chosen, shares, grouped, counts)


def _named(ratio: float) -> str:
    return ratio_text(ratio) if ratio else "base"
