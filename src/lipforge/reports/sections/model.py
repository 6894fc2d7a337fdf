"""What forging does inside the model, site by site over depth, and the pictures of a gallery."""

from collections.abc import Callable, Sequence

from lipforge.reports.blocks import Block, Figure, Pictures, Prose, Section
from lipforge.reports.charts import Axis, Lines, Point, Series, percent_tick
from lipforge.reports.read import Run
from lipforge.reports.tables import Share, Table, columns
from lipforge.results import Analysis, Gallery, LayerReport
from lipforge.text import eps_text, number, percent

Curve = tuple[str, str, bool, str]
"""A name, a role, whether it is dashed, and where its value is in a `LayerReport`."""
Panel = tuple[str, str, Callable[[float], str], tuple[Curve, ...]]

PANELS: tuple[Panel, ...] = (
    ("Threshold c_th", "|x| below which is forged", number, (("forged model", "forged", False, "threshold"),)),
    ("Suppressed activations", "share, %", percent_tick, (
        ("suppressed, clean images", "third", False, "suppressed_clean"),
        ("suppressed, adversarial images", "fourth", True, "suppressed_adversarial"),
    )),
    *((f"{title}, {mean}", unit, number, (
        ("plain model", "base", False, f"{plain}.{which}"),
        ("forged model", "forged", True, f"{forged}.{which}"),
    )) for title, unit, plain, forged in (
        ("Spectral ratio", "largest singular value, share of the layer's own", "ratio_active", "ratio_forged"),
        ("Gain", "|out' - out| / |in' - in|", "gain_plain", "gain_forged"),
    ) for mean, which in (("mean over images", "mean"), ("worst image", "worst"))),
)  # fmt: skip


def layers(run: Run) -> Section:
    """A panel per figure, each over the sites in the order of the model."""
    blocks: list[Block] = []
    for analysis in run.of(Analysis):
        blocks.append(_figure(analysis))
        blocks += _network(analysis)
        if analysis.notes:
            blocks.append(Prose("Notes of the analysis:", analysis.notes))
    lead = (
        "Sites from the image to the logits. Suppressed activations are those that the mask changes; many are 0 "
        "already. A spectral ratio of 1 means that the masked layer is as steep as the layer itself."
    )
    return Section("layers", "Inside the model", lead, tuple(blocks))


def _value(site: LayerReport, path: str) -> float | None:
    """The figure at `path`, such as "threshold" or "gain_plain.mean"; None where it does not apply."""
    name, _, part = path.partition(".")
    found = getattr(site, name)
    value: float | None = getattr(found, part) if part and found is not None else found
    return value


def _figure(analysis: Analysis) -> Figure:
    sites = analysis.layers
    charts = [chart for panel in PANELS if (chart := _panel(panel, sites)) is not None]
    about = ", ".join(text for text in (analysis.model, analysis.mask, analysis.data, analysis.attack) if text)
    caption = f"Over depth, {len(sites)} sites ({about}). The table names the sites."
    return Figure(caption, tuple(charts), _table(sites))


def _panel(panel: Panel, sites: Sequence[LayerReport]) -> Lines | None:
    title, unit, write, curves = panel
    shown = percent if write is percent_tick else number
    series = []
    for name, role, dashed, path in curves:
        points = tuple(
            Point(place, value, f"{site.name}: {name} {shown(value)}")
            for place, site in enumerate(sites, 1)
            if (value := _value(site, path)) is not None
        )
        if points:
            series.append(Series(name, role, points, dashed))
    if not series:
        return None
    ends = "; ".join(f"{s.name} from {number(s.points[0].y)} to {number(s.points[-1].y)}" for s in series)
    marks = tuple((float(place), str(place)) for place in range(1, len(sites) + 1, max(1, round(len(sites) / 6))))
    x = Axis("site, by depth", (0.5, len(sites) + 0.5), marks=marks)
    return Lines(f"{title} over depth: {ends}.", x, Axis(unit, write=write, floor=0.0), tuple(series), 250.0, title)


def _table(sites: Sequence[LayerReport]) -> Table:
    shares = {"zero, clean": "zero_clean", "suppressed, clean": "suppressed_clean",
              "suppressed, adversarial": "suppressed_adversarial"}  # fmt: skip
    numbers = {"largest singular value": "sigma", "ratio plain": "ratio_active.mean",
               "ratio forged": "ratio_forged.mean", "ratio forged, worst": "ratio_forged.worst",
               "gain plain": "gain_plain.mean", "gain forged": "gain_forged.mean"}  # fmt: skip
    heading = columns("site", "layer", "bound:number", "threshold:number", *(f"{name}:share" for name in shares),
                      *(f"{name}:number" for name in numbers))  # fmt: skip
    rows = tuple(
        (site.name, site.layer, site.bound, site.threshold,
         *(None if (share := _value(site, path)) is None else Share(share) for path in shares.values()),
         *(_value(site, path) for path in numbers.values()))
        for site in sites
    )  # fmt: skip
    return Table("sites", "Sites in the order of the model", heading, rows)


def _network(analysis: Analysis) -> list[Block]:
    network, product, lines = analysis.network, analysis.product, []
    for text, plain, forged in (
        ("|logits' - logits| / |x' - x|", network.gain_plain, network.gain_forged),
        ("largest slope at the clean images", network.jacobian_plain, network.jacobian_forged),
    ):
        if plain and forged:
            lines.append(
                f"{text}: plain {number(plain.mean)} on average and {number(plain.worst)} at "
                f"worst, forged {number(forged.mean)} and {number(forged.worst)}."
            )
    if product:
        lines.append(
            f"Product of the largest singular values over {product.sites} sites: 10^{number(product.log10_plain)} "
            f"without masks, 10^{number(product.log10_forged)} forged. "
            "It leaves out shortcuts, norms, stem and head, so it bounds nothing by itself."
        )
    return [Prose("The whole network, from image to logits in l2:", tuple(lines))] if lines else []


def pictures(run: Run) -> Section:
    """Images, their perturbations, and the predictions before and after."""
    galleries = tuple(
        Pictures(
            f"{gallery.title}. Perturbations are magnified {number(gallery.magnification)} times; the largest change "
            f"of a pixel is {eps_text(gallery.largest)}.",
            gallery.items,
        )
        for gallery in run.of(Gallery)
    )
    lead = "Each row: the image, its perturbation around grey, the perturbed image; below, the predicted classes."
    return Section("gallery", "Images", lead, galleries)
