"""Accuracy over the ratio c_r: what the search saw, and what it chose."""

from collections.abc import Sequence
from dataclasses import dataclass

from lipforge.reports.blocks import Block, Figure, Prose, Section
from lipforge.reports.charts import Axis, Lines, Point, Series
from lipforge.reports.read import Fields, Run
from lipforge.reports.sections.accuracy import percent_tick
from lipforge.reports.tables import Cell, Column, Share, Table
from lipforge.reports.text import percent, ratio_text


@dataclass(frozen=True)
class Score:
    """One candidate; a measure that was not taken is missing from `shares`."""

    ratio: float
    shares: dict[str, Share]


@dataclass(frozen=True)
class Tradeoff:
    """Candidates by rising ratio, with the measures that were taken on them."""

    title: str
    scores: tuple[Score, ...]
    remarks: tuple[str, ...]
    chosen: float | None = None


def tradeoff(run: Run) -> Section | None:
    """One figure per search, a panel per measure, with the base model as a level line."""
    found = [*run.parsed("search", parse_search), *run.parsed("demo", parse_demo)]
    blocks: list[Block] = []
    for search in found:
        if search.scores:
            blocks.append(_figure(search))
        if search.remarks:
            blocks.append(Prose("", search.remarks))
    lead = (
        "A larger ratio forges more activations. Ratio 0 is the base model, drawn as the dotted line; "
        "a curve above it is a gain on these images under these attacks, no more."
    )
    return Section("tradeoff", "Trade-off over the ratio", lead, tuple(blocks)) if blocks else None


def _figure(search: Tradeoff) -> Figure:
    measures = list(dict.fromkeys(name for score in search.scores for name in score.shares))
    charts = tuple(_panel(search, name) for name in measures if any(name in s.shares for s in search.scores))
    chosen = "" if search.chosen is None else f" Chosen: {ratio_text(search.chosen)}."
    return Figure(f"{search.title}.{chosen}", charts, _table(search, measures))


def _panel(search: Tradeoff, name: str) -> Lines:
    forged = [score for score in search.scores if score.ratio > 0 and name in score.shares]
    base = next((score.shares.get(name) for score in search.scores if score.ratio == 0), None)
    points = tuple(
        Point(place, score.shares[name].value, _tip(name, score, search.chosen), score.shares[name].interval)
        for place, score in enumerate(forged)
    )
    marks = tuple(
        (float(place), ratio_text(score.ratio) + ("*" if score.ratio == search.chosen else ""))
        for place, score in enumerate(forged)
    )
    said = ", ".join(f"{percent(s.shares[name].value)} % at {ratio_text(s.ratio)}" for s in forged)
    level = None if base is None else (base.value, f"base {percent(base.value)}")
    values = [v for p in points for v in (p.y, *(p.interval or ()))] + ([base.value] if base else [])
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    air = max(0.1 * (high - low), 0.02)
    return Lines(
        alt=f"{name} over the ratio: {said}." + (f" Base model {percent(base.value)} %." if base else ""),
        x=Axis(
            "ratio c_r" + (" (* chosen)" if search.chosen else ""), (-0.5, max(len(forged) - 0.5, 0.5)), marks=marks
        ),
        y=Axis("%", (max(low - air, 0.0), min(high + air, 1.0)), percent_tick),
        series=(Series("forged", "forged", points),) if points else (),
        height=230.0,
        title=name,
        level=level,
    )


def _tip(name: str, score: Score, chosen: float | None) -> str:
    share = score.shares[name]
    inner = f" [{percent(share.interval[0])}, {percent(share.interval[1])}]" if share.interval else ""
    mark = ", chosen" if score.ratio == chosen else ""
    return f"ratio {ratio_text(score.ratio)}{mark}: {name} {percent(share.value)} %{inner}"


def _table(search: Tradeoff, measures: Sequence[str]) -> Table:
    columns = (Column("ratio"), *(Column(name, "share") for name in measures))
    rows: list[tuple[Cell, ...]] = [
        (_named(score.ratio, search.chosen), *(score.shares.get(name) for name in measures)) for score in search.scores
    ]
    return Table("tradeoff", search.title, columns, tuple(rows))


def _named(ratio: float, chosen: float | None) -> str:
    if ratio == 0:
        return "base"
    return ratio_text(ratio) + (" (chosen)" if ratio == chosen else "")


MEASURES = {
    "clean accuracy": ("clean_accuracy", "clean_interval"),
    "robust accuracy": ("robust_accuracy", "interval"),
    "robust accuracy, plain attack": ("plain_accuracy", "plain_interval"),
    "robust accuracy, adaptive attack": ("adaptive_accuracy", "adaptive_interval"),
}


def parse_search(fields: Fields) -> Tradeoff:
    """A search from its JSON."""
    scores = [
        Score(row.number("ratio"), {
            name: Share(row.number(value), row.interval(interval) if row.has(interval) else None)
            for name, (value, interval) in MEASURES.items() if row.has(value)
        })
        for row in fields.each("scores")
    ]  # fmt: skip
    reason = fields.text("reason", "")
    title = "Candidates of the search on validation images"
    return Tradeoff(title, _by_ratio(scores), (reason,) if reason else (), fields.optional("chosen"))


def parse_demo(fields: Fields) -> Tradeoff:
    """The demo's table from its JSON."""
    names = {"clean accuracy": "clean", "plain attack": "plain_attack", "adaptive attack": "adaptive_attack",
             "both attacks together": "union"}  # fmt: skip
    scores = [
        Score(row.number("ratio"), {text: Share(row.number(name)) for text, name in names.items() if row.has(name)})
        for row in fields.each("rows")
    ]
    return Tradeoff(f"The demo's ratios, {fields.text('threat', '')}", _by_ratio(scores), ())


def _by_ratio(scores: Sequence[Score]) -> tuple[Score, ...]:
    return tuple(sorted(scores, key=lambda score: score.ratio))
