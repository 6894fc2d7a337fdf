"""Certified accuracy by randomized smoothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from lipforge.progress import duration
from lipforge.reports.blocks import Figure, Section
from lipforge.reports.charts import Axis, Lines, Point, Series
from lipforge.reports.parsed import is_base, roles
from lipforge.reports.read import Fields, Run
from lipforge.reports.sections.accuracy import percent_tick
from lipforge.reports.tables import Column, Share, Table
from lipforge.reports.text import percent


@dataclass(frozen=True)
class Certificate:
    """One certification: points of its curve are (radius, certified images, share with interval)."""

    label: str
    sigma: float
    n: int
    alpha: float
    count: int
    abstained: int
    forwards: int
    seconds: float
    curve: tuple[tuple[float, int, Share], ...]


def certified(run: Run) -> Section | None:
    """One figure per sigma."""
    found = sorted(run.parsed("certify", parse_certificate), key=lambda c: (c.sigma, not is_base(c.label), c.label))
    colours = roles(certificate.label for certificate in found)
    sigmas = dict.fromkeys(certificate.sigma for certificate in found)
    figures = [_figure([c for c in found if c.sigma == sigma and c.curve], colours) for sigma in sigmas]
    if not figures:
        return None
    first = found[0]
    abstained = ", ".join(f"{c.label} (sigma {c.sigma:g}) on {c.abstained} of {c.count}" for c in found)
    lead = (
        f"Randomized smoothing: the share of {first.count:,} images whose class provably holds inside an l2 ball. "
        f"Each claim comes from {first.n:,} noisy copies and is wrong with probability at most {first.alpha:g}. "
        f"Abstained: {abstained}. {sum(c.forwards for c in found):,} passes, {duration(sum(c.seconds for c in found))}."
    )
    return Section("certified", "Certified accuracy", lead, tuple(figures))


def _figure(same: Sequence[Certificate], colours: dict[str, str]) -> Figure:
    series = [
        Series(c.label, colours[c.label], tuple(
            Point(radius, share.value, _tip(c, radius, images, share), share.interval)
            for radius, images, share in c.curve
        ))
        for c in same
    ]  # fmt: skip
    sigma = same[0].sigma if same else 0.0
    starts = "; ".join(f"{c.label} {percent(c.curve[0][2].value)} % at radius {c.curve[0][0]:g}" for c in same)
    chart = Lines(
        alt=f"Certified accuracy over the l2 radius at sigma {sigma:g}. {starts}.",
        x=Axis("l2 radius"),
        y=Axis("certified accuracy, %", (0.0, 1.0), percent_tick),
        series=tuple(series),
    )
    caption = f"Certified accuracy over the radius, sigma {sigma:g}, with 95 % intervals over the choice of images."
    return Figure(caption, (chart,), _table(same, sigma))


def _tip(certificate: Certificate, radius: float, images: int, share: Share) -> str:
    low, high = share.interval or (share.value, share.value)
    return (
        f"{certificate.label}, radius {radius:g}: {percent(share.value)} % [{percent(low)}, {percent(high)}], "
        f"{images} of {certificate.count} images"
    )


def _table(same: Sequence[Certificate], sigma: float) -> Table:
    radii = sorted({radius for c in same for radius, _, _ in c.curve})
    by_radius = [{radius: share for radius, _, share in c.curve} for c in same]
    columns = (Column("radius", "number"), *(Column(c.label, "share") for c in same))
    rows = tuple((radius, *(shares.get(radius) for shares in by_radius)) for radius in radii)
    return Table("certified", f"Certified accuracy, sigma {sigma:g}", columns, rows)


def parse_certificate(fields: Fields) -> Certificate:
    """A certification from its JSON; the claims of single images are left in the file."""
    return Certificate(
        label=fields.text("label"),
        sigma=fields.number("sigma"),
        n=fields.whole("n"),
        alpha=fields.number("alpha"),
        count=fields.whole("count"),
        abstained=fields.whole("abstained"),
        forwards=fields.whole("forwards"),
        seconds=fields.number("seconds"),
        curve=tuple(
            (p.number("radius"), p.whole("certified"), Share(p.number("accuracy"), p.interval("interval")))
            for p in fields.each("curve")
        ),
    )
