"""Accuracy over something that rises: the ratio of a search, the eps of a sweep, the radius of a certification."""

from collections import defaultdict
from collections.abc import Sequence

from lipforge.reports.blocks import Block, Figure, Grid, Prose, Section
from lipforge.reports.charts import Axis, Lines, Point, Series, percent_axis, percent_tick
from lipforge.reports.read import Run, base_first, roles
from lipforge.reports.tables import Column, Share, Table
from lipforge.results import (
    CertifyResult,
    CurvePoint,
    RatioScore,
    SearchResult,
    SweepResult,
    SweepRow,
    TransferResult,
)
from lipforge.text import duration, eps_text, percent, share_text

LONG = 7
"""Longer names of settings, such as one ratio per group of sites, get a number on the axis; the table names them."""

CLEAN = "clean accuracy"
MEASURES = (CLEAN, "robust accuracy")


def tradeoff(run: Run) -> Section | None:
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
    return Section("tradeoff", "Trade-off over the ratio", lead, tuple(blocks)) if blocks else None


def _search_figure(search: SearchResult) -> Figure:
    about = ", ".join(text for text in (search.metric, search.attack, search.threat, search.data) if text)
    title = f"Candidates of the search ({about})"
    chosen = next((f" Chosen: {score.label}." for score in search.scores if _is_chosen(score, search)), "")
    measures = [name for name in MEASURES if any(_share(score, name) for score in search.scores)]
    charts = tuple(_search_panel(search, name) for name in measures)
    return Figure(f"{title}.{chosen}", charts, _search_table(search, measures, title))


def _share(score: RatioScore, measure: str) -> Share | None:
    """A measure of a setting, where it was taken."""
    if measure == CLEAN:
        return Share(score.clean_accuracy, score.clean_interval)
    return None if score.robust_accuracy is None else Share(score.robust_accuracy, score.interval)


def _is_chosen(score: RatioScore, search: SearchResult) -> bool:
    return score.ratio == search.chosen


def _search_panel(search: SearchResult, name: str) -> Lines:
    taken = [(*at, share) for at in enumerate(search.scores, 1) if (share := _share(at[1], name)) is not None]
    points: dict[tuple[str, bool], list[Point]] = defaultdict(list)
    for at, (_, score, share) in enumerate(taken):
        # A ratio per group of sites has no place among the rising ratios, so no line leads to it.
        key = ("base" if score.status == "base" else "forged", isinstance(score.ratio, float | int))
        points[key].append(Point(at, share.value, _search_tip(search, score, name, share), share.interval))
    values = [value for *_, share in taken for value in (share.value, *(share.interval or ()))]
    air = max(0.1 * (max(values) - min(values)), 0.02)
    star = " (* chosen)" if any(_is_chosen(score, search) for score in search.scores) else ""
    return Lines(
        alt=f"{name} over the ratio: {', '.join(f'{s.label} {percent(share.value)} %' for _, s, share in taken)}.",
        x=Axis(
            f"ratio c_r{star}",
            (-0.5, len(taken) - 0.5),
            marks=tuple((float(at), _mark(place, s, search)) for at, (place, s, _) in enumerate(taken)),
        ),
        y=Axis("%", (max(min(values) - air, 0.0), min(max(values) + air, 1.0)), percent_tick),
        series=tuple(Series(role, role, tuple(some), joined=joined) for (role, joined), some in points.items()),
        height=250.0,
        title=name,
        level=next((share.value for _, score, share in taken if score.status == "base"), None),
    )


def _mark(place: int, score: RatioScore, search: SearchResult) -> str:
    return (score.label if len(score.label) <= LONG else f"#{place}") + ("*" if _is_chosen(score, search) else "")


def _search_tip(search: SearchResult, score: RatioScore, name: str, share: Share) -> str:
    text = share_text(share.value, share.interval) if share.interval else percent(share.value)
    return f"{score.label}{', chosen' if _is_chosen(score, search) else ''}: {name} {text} %"


def _search_table(search: SearchResult, measures: Sequence[str], title: str) -> Table:
    columns = (Column("#", "count"), Column("ratio"), *(Column(name, "share") for name in measures), Column("status"),
               Column("n attacked", "count"), Column("gained", "count"), Column("lost", "count"))  # fmt: skip
    rows = tuple(
        (place, score.label + (" (chosen)" if _is_chosen(score, search) else ""),
         *(_share(score, name) for name in measures), score.status, score.count,
         *((score.against_base.gained, score.against_base.lost) if score.against_base else (None, None)))
        for place, score in enumerate(search.scores, 1)
    )  # fmt: skip
    return Table("tradeoff", title, columns, rows)


def sweeps(run: Run) -> Section | None:
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
    return Section("sweep", "Accuracy over eps", lead, tuple(blocks)) if blocks else None


def _sweep_figure(found: Sequence[SweepRow], carry: bool) -> Figure:
    ordered = base_first(sorted(found, key=lambda row: row.eps))
    colours = roles(row.label for row in ordered)
    attacks: dict[str, dict[str, list[SweepRow]]] = {row.attack: defaultdict(list) for row in ordered}
    for row in ordered:
        attacks[row.attack][row.label].append(row)
    columns = (Column("attack"), Column("classifier"), Column("eps"), Column("n", "count"), Column("robust", "share"))
    rows = tuple((r.attack, r.label, eps_text(r.eps), r.count, Share(r.robust_accuracy, r.interval))
                 for by_label in attacks.values() for same in by_label.values() for r in same)  # fmt: skip
    caption = "Accuracy over eps, one panel per attack, with 95 % intervals."
    if carry:
        caption += " An image broken at one eps counts as broken at every larger one, so curves fall by construction."
    charts = tuple(_sweep_panel(attack, by_label, colours) for attack, by_label in attacks.items())
    return Figure(caption, charts, Table("sweep", "Accuracy over eps", columns, rows))


def _sweep_panel(attack: str, by_label: dict[str, list[SweepRow]], colours: dict[str, str]) -> Lines:
    eps = sorted({row.eps for rows in by_label.values() for row in rows})
    series = tuple(
        Series(
            label,
            colours[label],
            tuple(Point(eps.index(r.eps), r.robust_accuracy, _sweep_tip(r), r.interval) for r in rows),
        )
        for label, rows in by_label.items()
    )
    ends = "; ".join(
        f"{label} from {percent(rows[0].robust_accuracy)} % at {eps_text(rows[0].eps)} "
        f"to {percent(rows[-1].robust_accuracy)} % at {eps_text(rows[-1].eps)}"
        for label, rows in by_label.items()
    )
    marks = tuple((float(place), eps_text(value)) for place, value in enumerate(eps))
    x = Axis("eps, evenly spaced", (-0.4, len(eps) - 0.6), marks=marks)
    return Lines(f"{attack}: {ends}.", x, percent_axis("robust accuracy, %"), series, 250.0, attack)


def _sweep_tip(row: SweepRow) -> str:
    share = share_text(row.robust_accuracy, row.interval)
    return f"{row.label}, {row.attack}, eps {eps_text(row.eps)}: {share} %, n = {row.count:,}"


def _transfer_table(found: Sequence[TransferResult]) -> Table:
    columns = (Column("crafted on"), Column("evaluated on"), Column("attack"), Column("threat"), Column("n", "count"),
               Column("robust", "share"), Column("broken on the first", "count"),
               Column("broken on both", "count"))  # fmt: skip
    rows = tuple(
        (t.source, t.target, t.attack, t.threat, t.count, Share(t.robust_accuracy, t.interval), t.shared, t.transferred)
        for t in found
    )
    return Table("transfer", "Transfer: images crafted on one model, evaluated on another", columns, rows)


def certified(run: Run) -> Section | None:
    """One figure per sigma."""
    found = sorted(base_first(run.of(CertifyResult)), key=lambda result: result.sigma)
    curves: dict[float, list[CertifyResult]] = defaultdict(list)
    for result in found:
        if result.curve:
            curves[result.sigma].append(result)
    if not curves:
        return None
    colours, first = roles(result.label for result in found), found[0]
    abstained = ", ".join(f"{r.label} (sigma {r.sigma:g}) on {r.abstained} of {r.count}" for r in found)
    lead = (
        f"Randomized smoothing: the share of {first.count:,} images whose class provably holds inside an l2 ball. "
        f"Each claim comes from {first.n:,} noisy copies and is wrong with probability at most {first.alpha:g}. "
        f"Abstained: {abstained}. {sum(r.forwards for r in found):,} passes, {duration(sum(r.seconds for r in found))}."
    )
    figures = tuple(_certified_figure(same, sigma, colours) for sigma, same in curves.items())
    return Section("certified", "Certified accuracy", lead, figures)


def _certified_figure(same: Sequence[CertifyResult], sigma: float, colours: dict[str, str]) -> Figure:
    series = tuple(
        Series(r.label, colours[r.label], tuple(
            Point(here.radius, here.accuracy, _certified_tip(r, here), here.interval) for here in r.curve
        ))
        for r in same
    )  # fmt: skip
    starts = "; ".join(f"{r.label} {percent(r.curve[0].accuracy)} % at radius {r.curve[0].radius:g}" for r in same)
    chart = Lines(
        alt=f"Certified accuracy over the l2 radius at sigma {sigma:g}. {starts}.",
        x=Axis("l2 radius"),
        y=percent_axis("certified accuracy, %"),
        series=series,
    )
    caption = f"Certified accuracy over the radius, sigma {sigma:g}, with 95 % intervals over the choice of images."
    radii = sorted({here.radius for r in same for here in r.curve})
    shares = [{here.radius: Share(here.accuracy, here.interval) for here in r.curve} for r in same]
    columns = (Column("radius", "number"), *(Column(r.label, "share") for r in same))
    rows = tuple((radius, *(by_radius.get(radius) for by_radius in shares)) for radius in radii)
    return Figure(caption, (chart,), Table("certified", f"Certified accuracy, sigma {sigma:g}", columns, rows))


def _certified_tip(result: CertifyResult, here: CurvePoint) -> str:
    share = share_text(here.accuracy, here.interval)
    return f"{result.label}, radius {here.radius:g}: {share} %, {here.certified} of {result.count} images"
