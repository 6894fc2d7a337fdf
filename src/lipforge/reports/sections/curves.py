"""Accuracy over something that rises: the ratio of a search, eps in curves and sweeps, a radius of a certification."""

from collections import defaultdict
from collections.abc import Sequence

from lipforge.reports.blocks import Block, Figure, Grid, Prose, Section
from lipforge.reports.charts import Axis, Lines, Point, Series, percent_axis, percent_tick
from lipforge.reports.read import Run, base_first, grouped, roles
from lipforge.reports.tables import Cell, Column, Share, Table, columns, shown
from lipforge.results import (
    UNKNOWN,
    BracketComparison,
    BracketResult,
    CertifyResult,
    CurveComparison,
    CurveResult,
    RatioScore,
    SearchResult,
    SweepResult,
    SweepRow,
    TransferResult,
)
from lipforge.text import duration, eps_text, percent, share_text

Measures = list[Share | None]
"""One measure of every setting; None where it was not taken."""

DRAWN = 16
"""At how many radii above 0 a robustness curve is drawn."""

LONG = 7
"""Longer names of settings, such as one ratio per group of sites, get a number on the axis; the table names them."""


def tradeoff(run: Run) -> Section:
    """One figure per search, a panel per measure, with the base model as a level line."""
    blocks: list[Block] = []
    for search in run.of(SearchResult):
        if search.scores:
            blocks.append(_search_figure(search))
        remarks = (search.reason, *search.all_notes)
        blocks.append(Prose("The choice, and notes of the search:", tuple(filter(None, remarks))))
    lead = (
        "A larger ratio forges more activations. The dotted line is the level of the base model; "
        "a point above it is a gain on these images under these attacks, no more."
    )
    return Section("tradeoff", "Trade-off over the ratio", lead, tuple(blocks))


def _search_figure(search: SearchResult) -> Figure:
    about = ", ".join(text for text in (search.metric, search.attack, search.threat, search.data) if text)
    title = f"Candidates of the search ({about})"
    chosen = next((f" Chosen: {score.label}." for score in search.scores if score.ratio == search.chosen), "")
    measures: dict[str, Measures] = {
        "clean accuracy": [Share(s.clean_accuracy, s.clean_interval) for s in search.scores]
    }
    if any(score.robust_accuracy is not None for score in search.scores):
        measures["robust accuracy"] = [
            None if s.robust_accuracy is None else Share(s.robust_accuracy, s.interval) for s in search.scores
        ]
    charts = tuple(_search_panel(search, name, found) for name, found in measures.items())
    return Figure(f"{title}.{chosen}", charts, _search_table(search, measures, title))


def _search_panel(search: SearchResult, name: str, found: Measures) -> Lines:
    numbered = enumerate(zip(search.scores, found, strict=True), 1)
    taken = [(place, score, share) for place, (score, share) in numbered if share is not None]
    points: dict[tuple[str, bool], list[Point]] = defaultdict(list)
    for at, (_, score, share) in enumerate(taken):
        # A ratio per group of sites has no place among the rising ratios, so no line leads to it.
        key = ("base" if score.status == "base" else "forged", isinstance(score.ratio, float | int))
        tip = f"{_name(score, search, ', chosen')}: {name} {shown(Column(name, 'share'), share)} %"
        points[key].append(Point(at, share.value, tip, share.interval))
    values = [value for *_, share in taken for value in (share.value, *(share.interval or ()))]
    air = max(0.1 * (max(values) - min(values)), 0.02)
    star = " (* chosen)" if any(score.ratio == search.chosen for score in search.scores) else ""
    marks = tuple(
        (float(at), _name(score, search, "*", score.label if len(score.label) <= LONG else f"#{place}"))
        for at, (place, score, _) in enumerate(taken)
    )
    return Lines(
        alt=f"{name} over the ratio: {', '.join(f'{s.label} {percent(share.value)} %' for _, s, share in taken)}.",
        x=Axis(f"ratio c_r{star}", (-0.5, len(taken) - 0.5), marks=marks),
        y=Axis("%", (max(min(values) - air, 0.0), min(max(values) + air, 1.0)), percent_tick),
        series=tuple(Series(role, role, tuple(some), joined=joined) for (role, joined), some in points.items()),
        height=250.0,
        title=name,
        level=next((share.value for _, score, share in taken if score.status == "base"), None),
    )


def _name(score: RatioScore, search: SearchResult, chosen: str, name: str = "") -> str:
    return (name or score.label) + (chosen if score.ratio == search.chosen else "")


def _search_table(search: SearchResult, measures: dict[str, Measures], title: str) -> Table:
    heading = columns("#:count", "ratio", *(f"{name}:share" for name in measures), "status", "n attacked:count",
                      "gained:count", "lost:count")  # fmt: skip
    rows = tuple(
        (place, _name(score, search, " (chosen)"), *(found[place - 1] for found in measures.values()), score.status,
         score.count, *((score.against_base.gained, score.against_base.lost) if score.against_base else (None, None)))
        for place, score in enumerate(search.scores, 1)
    )  # fmt: skip
    return Table("tradeoff", title, heading, rows)


def robustness_curves(run: Run) -> Section:
    """One figure per norm and largest eps, and the paired comparisons of its curves."""
    found = sorted(run.of(CurveResult), key=base_first)
    blocks: list[Block] = [_curve_figure(same) for same in grouped(found, "norm", "eps", "attack", "data").values()]
    if compared := tuple(str(pair) for pair in run.of(CurveComparison)):
        blocks.append(Prose("Paired, over the same images (area: the mean over eps, in percentage points):", compared))
    if notes := tuple(f"{one.label}: {note}" for one in found for note in one.notes):
        blocks.append(Prose("Notes (reasons not to trust these numbers):", notes))
    lead = (
        "The smallest eps that a minimum-norm attack found for each image gives robust accuracy at every eps. It is an "
        "upper bound: a better attack would find smaller ones."
    )
    return Section("curve", "Robustness curve", lead, tuple(blocks))


def _curve_figure(same: Sequence[CurveResult]) -> Figure:
    colours, first = roles(one.label for one in same), same[0]
    series = []
    for one in same:
        points = []
        for eps in (one.eps * step / DRAWN for step in range(DRAWN + 1)):
            share = share_text(one.accuracy_at(eps), one.interval_at(eps))
            tip = f"{one.label}, eps {eps_text(eps)}: {share} %, n = {one.count:,}"
            points.append(Point(eps, one.accuracy_at(eps), tip, one.interval_at(eps)))
        series.append(Series(one.title, colours[one.label], tuple(points)))
    marks = tuple((eps, eps_text(eps)) for eps in (0.0, *first.shown))
    starts = "; ".join(f"{one.label} median eps {one.median_text}" for one in same)
    chart = Lines(
        f"Robust accuracy over {first.norm} eps. {starts}.",
        Axis(f"{first.norm} eps", (0.0, first.eps), marks=marks),
        percent_axis("robust accuracy, %"),
        tuple(series),
    )
    caption = f"Robust accuracy over eps under {first.attack}; the 95 % bands hold for all eps together."
    heading = (
        *columns("classifier", "n:count", "clean:share"),
        *(Column(f"eps {eps_text(eps)}", "share") for eps in first.shown),
        *columns("median eps", "area:share"),
    )
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (one.title, one.count, Share(one.clean_accuracy, one.clean_interval),
         *(Share(one.accuracy_at(eps), one.interval_at(eps)) for eps in one.shown),
         one.median_text, Share(one.area, one.area_interval))
        for one in same
    )  # fmt: skip
    return Figure(caption, (chart,), Table("curve", f"Robustness curve, {first.threat}", heading, rows))


def sweeps(run: Run) -> Section:
    """A panel per attack: base and forged over eps. Transfer is a table below."""
    found, transfers = run.of(SweepResult), run.of(TransferResult)
    rows = [row for sweep in found for row in sweep.rows]
    blocks: list[Block] = [_sweep_figure(rows, any(sweep.carry for sweep in found))] if rows else []
    if notes := tuple(note for sweep in found for note in sweep.all_notes):
        blocks.append(Prose("Notes (reasons not to trust these numbers):", notes))
    if transfers:
        blocks.append(Grid(_transfer_table(transfers)))
    lead = (
        "Without masked gradients accuracy falls to 0 as eps grows, iterative attacks break more images than one-step "
        "ones, and images crafted on another model break fewer than those crafted on the model itself."
    )
    return Section("sweep", "Accuracy over eps", lead, tuple(blocks))


def _sweep_figure(found: Sequence[SweepRow], carry: bool) -> Figure:
    ordered = sorted(found, key=lambda row: (*base_first(row), row.eps))
    colours = roles(row.label for row in ordered)
    attacks = {attack: grouped(rows, "label") for attack, rows in grouped(ordered, "attack").items()}
    heading = columns("attack", "classifier", "eps", "n:count", "robust:share")
    cells = tuple((r.attack, r.label, eps_text(r.eps), r.count, Share(r.robust_accuracy, r.interval))
                 for by_label in attacks.values() for same in by_label.values() for r in same)  # fmt: skip
    caption = "Accuracy over eps, one panel per attack, with 95 % intervals."
    if carry:
        caption += " An image broken at one eps counts as broken at every larger one, so curves fall by construction."
    charts = tuple(_sweep_panel(attack, by_label, colours) for attack, by_label in attacks.items())
    return Figure(caption, charts, Table("sweep", "Accuracy over eps", heading, cells))


def _sweep_panel(attack: str, by_label: dict[str, list[SweepRow]], colours: dict[str, str]) -> Lines:
    eps = sorted({row.eps for rows in by_label.values() for row in rows})
    series, ends = [], []
    for label, rows in by_label.items():
        points = []
        for r in rows:
            share = share_text(r.robust_accuracy, r.interval)
            tip = f"{label}, {attack}, eps {eps_text(r.eps)}: {share} %, n = {r.count:,}"
            points.append(Point(eps.index(r.eps), r.robust_accuracy, tip, r.interval))
        series.append(Series(label, colours[label], tuple(points)))
        first, last = (f"{percent(r.robust_accuracy)} % at {eps_text(r.eps)}" for r in (rows[0], rows[-1]))
        ends.append(f"{label} from {first} to {last}")
    marks = tuple((float(place), eps_text(value)) for place, value in enumerate(eps))
    x = Axis("eps, evenly spaced", (-0.4, len(eps) - 0.6), marks=marks)
    alt = f"{attack}: {'; '.join(ends)}."
    return Lines(alt, x, percent_axis("robust accuracy, %"), tuple(series), 250.0, attack)


def _transfer_table(found: Sequence[TransferResult]) -> Table:
    heading = columns("crafted on", "evaluated on", "attack", "threat", "n:count", "robust:share",
                      "broken on the first:count", "broken on both:count")  # fmt: skip
    rows = tuple(
        (t.source, t.target, t.attack, t.threat, t.count, Share(t.robust_accuracy, t.interval), t.shared, t.transferred)
        for t in found
    )
    return Table("transfer", "Transfer: images crafted on one model, evaluated on another", heading, rows)


def certified(run: Run) -> Section:
    """One figure per sigma."""
    found = sorted(run.of(CertifyResult), key=lambda result: (result.sigma, *base_first(result)))
    curves = grouped([result for result in found if result.curve], "sigma")
    if not curves:
        return Section("certified", "Certified accuracy", "")
    colours, first = roles(result.label for result in found), found[0]
    abstained = ", ".join(f"{r.label} (sigma {r.sigma:g}) on {r.abstained} of {r.count}" for r in found)
    lead = (
        f"Randomized smoothing: the share of {first.count:,} images whose class provably holds inside an l2 ball. "
        f"Each claim comes from {first.n:,} noisy copies and is wrong with probability at most {first.alpha:g}. "
        f"Abstained: {abstained}. {sum(r.forwards for r in found):,} passes, {duration(sum(r.seconds for r in found))}."
    )
    figures = tuple(_certified_figure(same, sigma, colours) for sigma, same in curves.items())
    return Section("certified", "Certified accuracy", lead, figures)


def brackets(run: Run) -> Section:
    """A table of what is certified and what the attack leaves, and what two brackets say of each other."""
    found = sorted(run.of(BracketResult), key=base_first)
    heading = columns("classifier", "threat", "method", "n:count", "clean:share", "certified:share", "attack",
                      "attacked:share", "unknown:count")  # fmt: skip
    rows = tuple(
        (r.label, r.threat, r.method, r.count, Share(r.clean_accuracy, r.clean_interval),
         Share(r.certified_accuracy, r.certified_interval), r.attack, Share(r.robust_accuracy, r.interval),
         r.outcome.count(UNKNOWN))
        for r in found
    )  # fmt: skip
    blocks: list[Block] = [Grid(Table("bracket", "Certified <= truth <= attacked", heading, rows))] if rows else []
    if pairs := run.of(BracketComparison):
        blocks.append(Prose("Paired, over the same images:", tuple(map(str, pairs))))
    lead = (
        "Deterministic bounds prove images robust, and an attack breaks others: the robust accuracy on these images "
        "lies in between. Intervals are about the choice of images."
    )
    return Section("bracket", "Certified brackets", lead, tuple(blocks))


def _certified_figure(same: Sequence[CertifyResult], sigma: float, colours: dict[str, str]) -> Figure:
    series = []
    for r in same:
        points = []
        for here in r.curve:
            share = share_text(here.accuracy, here.interval)
            tip = f"{r.label}, radius {here.radius:g}: {share} %, {here.certified} of {r.count} images"
            points.append(Point(here.radius, here.accuracy, tip, here.interval))
        series.append(Series(r.label, colours[r.label], tuple(points)))
    starts = "; ".join(f"{r.label} {percent(r.curve[0].accuracy)} % at radius {r.curve[0].radius:g}" for r in same)
    alt = f"Certified accuracy over the l2 radius at sigma {sigma:g}. {starts}."
    chart = Lines(alt, Axis("l2 radius"), percent_axis("certified accuracy, %"), tuple(series))
    caption = f"Certified accuracy over the radius, sigma {sigma:g}, with 95 % intervals over the choice of images."
    radii = sorted({here.radius for r in same for here in r.curve})
    shares = [{here.radius: Share(here.accuracy, here.interval) for here in r.curve} for r in same]
    heading = (Column("radius", "number"), *(Column(r.label, "share") for r in same))
    rows = tuple((radius, *(by_radius.get(radius) for by_radius in shares)) for radius in radii)
    return Figure(caption, (chart,), Table("certified", f"Certified accuracy, sigma {sigma:g}", heading, rows))
