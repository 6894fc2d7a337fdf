"""Robustness curves as a picture."""

from collections.abc import Sequence
from pathlib import Path

from lipforge.errors import InputError, import_extra
from lipforge.results import CurveResult


def check_picture(path: str | Path) -> None:
    """Raise unless `path` names a kind of picture that can be written."""
    if Path(path).suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"the plot must be saved as .png, .svg or .pdf, got {path}")


def plot_curves(found: Sequence[CurveResult], path: str | Path) -> None:
    """Save robust accuracy over eps of each classifier, with its simultaneous band, as .png, .svg or .pdf."""
    check_picture(path)
    figure = import_extra("matplotlib.figure", "plots").Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for number, one in enumerate(found):
        # The accuracy changes at the eps of single images only; the last piece ends where the curve does.
        eps = sorted({0.0, *(value for value in one.smallest_eps if value is not None), one.eps})
        low, high = zip(*(one.interval_at(value) for value in eps), strict=True)
        colour, below, above = f"C{number}", [100 * part for part in low], [100 * part for part in high]
        axes.fill_between(eps, below, above, step="post", color=colour, alpha=0.15, lw=0)
        axes.step(eps, [100 * one.accuracy_at(value) for value in eps], where="post", color=colour, label=one.title)
    axes.set(xlabel=f"{found[0].norm} eps", ylabel="robust accuracy, %", xlim=(0, found[0].eps), ylim=(0, 100))
    axes.set_title(f"{found[0].attack}, {found[0].data}, n = {found[0].count}, simultaneous 95 % bands", fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
