"""The figures of an analysis over depth, as PNG files."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lipforge.results.analysis import Analysis, LayerReport, Spread

Read = Callable[[LayerReport], float | Spread | None]
Lines = dict[str, Read]

FIGURES: dict[str, tuple[str, Lines]] = {
    "suppressed": (
        "share of activations",
        {
            "0 already, clean": lambda site: site.zero_clean,
            "suppressed, clean": lambda site: site.suppressed_clean,
            "suppressed, adversarial": lambda site: site.suppressed_adversarial,
        },
    ),
    "singular": (
        "largest singular value",
        {
            "layer": lambda site: site.sigma,
            "row-sum bound": lambda site: site.gershgorin,
            "row-sum bound, masked": lambda site: site.gershgorin_forged,
        },
    ),
    "ratio": (
        "largest singular value under masks / without",
        {
            "without inputs that are 0": lambda site: site.ratio_active,
            "forged": lambda site: site.ratio_forged,
        },
    ),
    "gain": (
        "|out' - out| / |in' - in|, clean to adversarial",
        {"plain": lambda site: site.gain_plain, "forged": lambda site: site.gain_forged},
    ),
    "threshold": (
        "activation",
        {"bound": lambda site: site.bound, "threshold": lambda site: site.threshold, "jump": lambda site: site.jump},
    ),
}


def plot_analysis(analysis: Analysis, folder: str | Path) -> list[Path]:
    """Write one PNG per figure that has anything to show; solid lines are means, dotted ones the worst image."""
    figures = importlib.import_module("matplotlib.figure")  # slow to import, and only plots need it
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, (title, lines) in FIGURES.items():
        figure = figures.Figure(figsize=(max(6.0, 0.35 * len(analysis.layers) + 3), 4.5), layout="constrained")
        if _draw(figure.subplots(), analysis.layers, title, lines):
            figure.savefig(folder / f"{name}.png", dpi=120)
            written.append(folder / f"{name}.png")
    return written


def _draw(axes: Any, layers: Sequence[LayerReport], title: str, lines: Lines) -> bool:
    """Draw each line that has a value somewhere; whether there was any."""
    for colour, (label, read) in enumerate(lines.items()):
        values = [read(site) for site in layers]
        style = {"color": f"C{colour}", "marker": "o", "markersize": 3}
        if any(value is not None for value in values):
            axes.plot([_number(value, "mean") for value in values], label=label, **style)
        if any(isinstance(value, Spread) for value in values):
            axes.plot([_number(value, "worst") for value in values], label=f"{label}, worst", ls=":", **style)
    if not axes.lines:
        return False
    axes.set_xticks(range(len(layers)), [site.name for site in layers], rotation=90, fontsize=7)
    axes.set_ylabel(title, fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return True


def _number(value: float | Spread | None, which: str) -> float:
    if value is None:
        return float("nan")
    return float(getattr(value, which)) if isinstance(value, Spread) else value
