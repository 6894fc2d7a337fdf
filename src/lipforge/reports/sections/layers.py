"""What forging does inside the model, site by site over depth."""

from collections.abc import Callable, Sequence

from lipforge.reports.blocks import Block, Figure, Prose, Section
from lipforge.reports.charts import Axis, Lines, Point, Series
from lipforge.reports.read import Fields, Run
from lipforge.reports.sections.accuracy import percent_tick
from lipforge.reports.tables import Cell, Column, Share, Table
from lipforge.reports.text import number, percent

Get = Callable[[Fields], float | None]
Curve = tuple[str, str, bool, Get]
"""A name, a role, whether it is dashed, and where its value is."""


def layers(run: Run) -> Section | None:
    """A panel per figure, each over the sites in the order of the model."""
    blocks: list[Block] = []
    for analysis in run.parsed("analysis", _checked):
        sites = analysis.each("layers")
        blocks.append(_figure(analysis, sites))
        blocks += _network(analysis)
        if notes := analysis.texts("notes"):
            blocks.append(Prose("Notes of the analysis:", notes))
    lead = (
        "Sites from the image to the logits. Suppressed activations are those that the mask changes; many are 0 "
        "already. A spectral ratio of 1 means that the masked layer is as steep as the layer itself."
    )
    return Section("layers", "Inside the model", lead, tuple(blocks)) if blocks else None


def _checked(analysis: Fields) -> Fields:
    """The analysis itself, once everything that the page reads of it has been read."""
    for site in analysis.each("layers"):
        site.text("name"), site.number("bound"), site.number("threshold")
        for _, _, _, curves in PANELS:
            for _, _, _, get in curves:
                get(site)
    analysis.texts("notes"), _network(analysis)
    return analysis


def _at(name: str) -> Get:
    return lambda site: site.optional(name)


def _spread(name: str, which: str) -> Get:
    return lambda site: site.inner(name).number(which) if site.has(name) else None


PANELS: tuple[tuple[str, str, Callable[[float], str], tuple[Curve, ...]], ...] = (
    ("Threshold c_th", "|x| below which is forged", number, (("forged model", "forged", False, _at("threshold")),)),
    ("Suppressed activations", "share, %", percent_tick, (
        ("suppressed, clean images", "third", False, _at("suppressed_clean")),
        ("suppressed, adversarial images", "fourth", True, _at("suppressed_adversarial")),
    )),
    ("Spectral ratio, mean over images", "largest singular value, share of the layer's own", number, (
        ("plain model", "base", False, _spread("ratio_active", "mean")),
        ("forged model", "forged", True, _spread("ratio_forged", "mean")),
    )),
    ("Spectral ratio, worst image", "largest singular value, share of the layer's own", number, (
        ("plain model", "base", False, _spread("ratio_active", "worst")),
        ("forged model", "forged", True, _spread("ratio_forged", "worst")),
    )),
    ("Gain, mean over images", "|out' - out| / |in' - in|", number, (
        ("plain model", "base", False, _spread("gain_plain", "mean")),
        ("forged model", "forged", True, _spread("gain_forged", "mean")),
    )),
    ("Gain, worst image", "|out' - out| / |in' - in|", number, (
        ("plain model", "base", False, _spread("gain_plain", "worst")),
        ("forged model", "forged", True, _spread("gain_forged", "worst")),
    )),
)  # fmt: skip


def _figure(analysis: Fields, sites: Sequence[Fields]) -> Figure:
    charts = [chart for panel in PANELS if (chart := _panel(panel, sites)) is not None]
    about = ", ".join(text for name in ("model", "mask", "data", "attack") if (text := analysis.text(name, "")))
    caption = f"Over depth, {len(sites)} sites ({about}). The table names the sites."
    return Figure(caption, tuple(charts), _table(sites))


def _panel(panel: tuple[str, str, Callable[[float], str], tuple[Curve, ...]], sites: Sequence[Fields]) -> Lines | None:
    title, unit, write, curves = panel
    series = []
    for name, role, dashed, get in curves:
        values = [(place, site, value) for place, site in enumerate(sites, 1) if (value := get(site)) is not None]
        shown = percent if write is percent_tick else number
        points = [Point(place, value, f"{site.text('name')}: {name} {shown(value)}") for place, site, value in values]
        if points:
            series.append(Series(name, role, tuple(points), dashed))
    if not series:
        return None
    ends = "; ".join(f"{s.name} from {number(s.points[0].y)} to {number(s.points[-1].y)}" for s in series)
    count = len(sites)
    step = max(1, round(count / 6))
    marks = tuple((float(place), str(place)) for place in range(1, count + 1) if (place - 1) % step == 0)
    x = Axis("site, by depth", (0.5, count + 0.5), marks=marks)
    return Lines(f"{title} over depth: {ends}.", x, Axis(unit, write=write, floor=0.0), tuple(series), 250.0, title)


def _table(sites: Sequence[Fields]) -> Table:
    columns = [Column("site"), Column("layer"), Column("bound", "number"), Column("threshold", "number"),
               Column("zero, clean", "share"), Column("suppressed, clean", "share"),
               Column("suppressed, adversarial", "share"), Column("largest singular value", "number"),
               Column("ratio plain", "number"), Column("ratio forged", "number"),
               Column("ratio forged, worst", "number"),
               Column("gain plain", "number"), Column("gain forged", "number")]  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (
            site.text("name"), site.text("layer", ""), site.number("bound"), site.number("threshold"),
            *(None if (v := site.optional(name)) is None else Share(v)
              for name in ("zero_clean", "suppressed_clean", "suppressed_adversarial")),
            site.optional("sigma"),
            *(_spread(name, which)(site) for name, which in (
                ("ratio_active", "mean"), ("ratio_forged", "mean"), ("ratio_forged", "worst"),
                ("gain_plain", "mean"), ("gain_forged", "mean"))),
        )
        for site in sites
    ]  # fmt: skip
    return Table("sites", "Sites in the order of the model", tuple(columns), tuple(rows))


def _network(analysis: Fields) -> list[Block]:
    """The whole network, and the product bound with what it does not say."""
    lines = []
    if analysis.has("network"):
        network = analysis.inner("network")
        for name, text in (
            ("gain", "|logits' - logits| / |x' - x|"),
            ("jacobian", "largest slope at the clean images"),
        ):
            if network.has(f"{name}_plain", f"{name}_forged"):
                plain, forged = network.inner(f"{name}_plain"), network.inner(f"{name}_forged")
                lines.append(
                    f"{text}: plain {number(plain.number('mean'))} on average and {number(plain.number('worst'))} at "
                    f"worst, forged {number(forged.number('mean'))} and {number(forged.number('worst'))}."
                )
    if analysis.has("product"):
        product = analysis.inner("product")
        lines.append(
            f"Product of the largest singular values over {product.whole('sites')} sites: 10^"
            f"{number(product.number('log10_plain'))} without masks, "
            f"10^{number(product.number('log10_forged'))} forged. "
            "It leaves out shortcuts, norms, stem and head, so it bounds nothing by itself."
        )
    return [Prose("The whole network, from image to logits in l2:", tuple(lines))] if lines else []
