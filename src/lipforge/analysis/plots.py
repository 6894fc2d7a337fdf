"""The figures of an analysis over depth, as PNG files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lipforge.errors import import_extra
from lipforge.results.analysis import Analysis, LayerReport, Spread

Lines = dict[str, str]
"""The label of each line, and the field of a `LayerReport` that it shows."""

FIGURES: dict[str, tuple[str, Lines]] = {
    "suppressed": (
        "share of activations",
        {
            "0 already, clean": "zero_clean",
            "suppressed, clean": "suppressed_clean",
            "suppressed, adversarial": "suppressed_adversarial",
        },
    ),
    "singular": (
        "largest singular value",
        {"layer": "sigma", "row-sum bound": "gershgorin", "row-sum bound, masked": "gershgorin_forged"},
    ),
    "ratio": (
        "largest singular value under masks / without",
        {"without inputs that are 0": "ratio_active", "forged": "ratio_forged"},
    ),
    "gain": ("|out' - out| / |in' - in|, clean to adversarial", {"plain": "gain_plain", "forged": "gain_forged"}),
    "threshold": ("activation", {"bound": "bound", "threshold": "threshold", "jump": "jump"}),
}


def plot_analysis(analysis: Analysis, folder: str | Path) -> list[Path]:
    """Write one PNG per figure that has anything to show; solid lines are means, dotted ones the worst image."""
    figures = import_extra("matplotlib.figure", "plots")
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
    for colour, (label, field) in enumerate(lines.items()):
        values = [getattr(site, field) for site in layers]
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
