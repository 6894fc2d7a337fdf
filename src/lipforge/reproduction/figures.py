"""The figures of the paper: certified curves, pruned activations and eigenvalues over depth."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from lipforge.analysis import analyse
from lipforge.certification import certify
from lipforge.data import take
from lipforge.errors import InputError, import_extra
from lipforge.paper.settings import PaperFigure
from lipforge.ranks import is_first
from lipforge.reproduction.plan import Setting, matching
from lipforge.reproduction.run import MISSING, STAND_IN, kept_in
from lipforge.reproduction.sources import Source
from lipforge.reproduction.subject import Subject
from lipforge.results import Analysis, CertifyResult, LayerReport, Spread
from lipforge.runs import RunDir, slug
from lipforge.text import percent, share_text
from lipforge.types import parse_number

Results: TypeAlias = list[CertifyResult] | list[Analysis]
STYLES = ("-", "--", ":")
PANELS = ("fc1", "fc2")
"""The two linear layers of a transformer's MLP: the paper draws each by itself."""


def reproduce_figure(
    name: str,
    source: Source | None = None,
    *,
    row: str = "*",
    force: bool = False,
    run: RunDir | None = None,
    seed: int = 0,
    show_progress: bool | None = None,
) -> tuple[Results, list[str]]:
    """The curves or layers of a figure for the models that match the glob `row`, and what to know of them.

    Curves are resumable and shared by the ranks of torchrun; figures over depth are measured by the first rank.
    """
    source = source or Source()
    figure = source.settings.figures.get(name)
    if figure is None:
        raise InputError(f"name must be a figure ({', '.join(source.settings.figures)}), got {name!r}")
    if source.dtype != "float32":
        raise InputError(f"figures are measured in float32, got dtype {source.dtype}; tables take it")
    models = matching(figure.models, row, what=f"figure {name}")
    found: list[Any] = []
    notes = [STAND_IN] if source.stand_in else [f"printed: {figure.printed}"] if figure.printed else []
    setting = Setting(parse_number(figure.ratio, name="ratio"))
    with kept_in(run) as kept:
        for model in models:
            paper = source.settings.model(figure.dataset, model)
            try:
                subject = Subject.load(paper, source, kept, None, show_progress)
                subject.check_base(force=force)
                subject.calibrate(setting)
                found += (
                    _curves(subject, setting, figure, seed) if figure.smoothing else _depth(subject, setting, figure)
                )
            except MISSING as error:
                notes.append(f"missing: {figure.dataset} {model}: {error}")
    return found, notes


def _curves(subject: Subject, setting: Setting, figure: PaperFigure, seed: int) -> Iterator[CertifyResult]:
    smoothing = subject.source.smoothing or figure.smoothing
    assert smoothing is not None
    for each in (Setting(0.0), setting):
        with subject.seen_as(each) as (view, _):
            yield certify(
                view,
                subject.test,
                **vars(smoothing),
                run=subject.run,
                label=subject.label(each),
                model_name=subject.title,
                seed=seed,
                show_progress=subject.show_progress,
            )


def _depth(subject: Subject, setting: Setting, figure: PaperFigure) -> Iterator[Analysis]:
    """The layers on the calibration images, which the paper calls the observed data."""
    if not is_first():
        return
    source, dataset = subject.source, subject.paper.dataset
    images = source.training(dataset, source.calibration_count(dataset, None))
    images = images if source.limit is None else take(images, source.limit)
    with subject.seen_as(setting):
        result = analyse(
            subject.model,
            images,
            spectral_images=len(images) if figure.spectra else 0,
            model_name=subject.title,
            data_name=images.name,
            show_progress=subject.show_progress,
        )
    subject.run.write_result(f"analysis__{slug(subject.label(setting))}", result)
    yield result


def figure_table(name: str, found: Results) -> tuple[str, list[str], list[list[str]]]:
    """Title, columns and rows of what a figure shows."""
    curves = [one for one in found if isinstance(one, CertifyResult)]
    if curves:
        points = [[one.at(here.radius) for one in curves] for here in curves[0].curve]
        rows = [[f"{at[0].radius:g}", *(share_text(one.accuracy, one.interval) for one in at)] for at in points]
        return f"figure {name}: % certified [95 %], n = {curves[0].count}", [">l2 radius", *_names(curves)], rows
    columns, analyses = _columns(name), [one for one in found if isinstance(one, Analysis)]
    rows = [
        [one.model, site.name, *(_percent(value(site)) for value in columns.values())]
        for one in analyses
        for site in one.layers
    ]
    images = max((one.images for one in analyses), default=0)
    return (
        f"figure {name}: %, {images} calibration images",
        ["model", "site", *(f">{label}" for label in columns)],
        rows,
    )


def plot_figure(name: str, found: Results, folder: str | Path) -> list[Path]:
    """Write the figure as NAME.svg and NAME.png: a panel per model for curves, one for FC1 and FC2 over depth."""
    figures = import_extra("matplotlib.figure", "plots")
    if not found:
        return []
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    ticker = import_extra("matplotlib.ticker", "plots")
    certified = isinstance(found[0], CertifyResult)
    panels = _curve_panels(found) if certified else _depth_panels(name, found)
    drawn = figures.Figure(figsize=(4.5 * len(panels), 3.6), layout="constrained")
    for axes, (title, lines) in zip(drawn.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for style, (label, (x, y)) in zip(STYLES, lines.items(), strict=False):
            axes.plot(x, y, label=label, ls=style, marker="o", markersize=3)
        axes.set_title(title, fontsize=9)
        axes.set_ylabel("certified accuracy, %" if certified else "%", fontsize=8)
        axes.set_xlabel("l2 radius" if certified else "layer", fontsize=8)
        if not certified:
            axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        if name != "eigenvalues":
            axes.set_ylim(0, 100)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    paths = [folder / f"{name}.{suffix}" for suffix in ("svg", "png")]
    for path in paths:
        drawn.savefig(path, dpi=150)
    return paths


Lines: TypeAlias = dict[str, tuple[list[float], list[float]]]


def _curve_panels(found: Results) -> dict[str, Lines]:
    panels: dict[str, Lines] = {}
    for one in found:
        assert isinstance(one, CertifyResult)
        lines = panels.setdefault(one.model, {})
        points = [at.radius for at in one.curve], [100 * at.accuracy for at in one.curve]
        lines["Ours" if lines else "Original"] = points
    return panels


def _depth_panels(name: str, found: Results) -> dict[str, Lines]:
    panels: dict[str, Lines] = {}
    for one in found:
        assert isinstance(one, Analysis)
        kinds = [kind for kind in PANELS if any(site.name.endswith(kind) for site in one.layers)]
        for kind in kinds or [""]:
            sites = [site for site in one.layers if site.name.endswith(kind)]
            panels[f"{one.model} {kind.upper()}".strip()] = {
                label: ([float(at) for at in range(1, len(sites) + 1)], [_number(value(site)) for site in sites])
                for label, value in _columns(name).items()
            }
    return panels


def _columns(name: str) -> dict[str, Callable[[LayerReport], float | None]]:
    """The lines of a figure over depth. Eigenvalues of W^T W are squares of singular values."""
    if name == "pruned":
        return {
            "zeroed by the mask": lambda site: site.suppressed_clean,
            "pruned in all": lambda site: (site.zero_clean or 0.0) + (site.suppressed_clean or 0.0),
        }
    return {
        "mean": lambda site: _squared(site.ratio_forged, "mean"),
        "worst image": lambda site: _squared(site.ratio_forged, "worst"),
        "worst, without masks": lambda site: _squared(site.ratio_active, "worst"),
    }


def _squared(spread: Spread | None, which: str) -> float | None:
    return None if spread is None else float(getattr(spread, which)) ** 2


def _names(curves: Sequence[CertifyResult]) -> list[str]:
    return [f">{one.model} {one.label.rpartition(' ')[2]}" for one in curves]


def _percent(value: float | None) -> str:
    return "-" if value is None else percent(value)


def _number(value: float | None) -> float:
    return float("nan") if value is None else 100 * value
