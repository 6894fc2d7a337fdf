"""Robustness curves, and accuracy under corruptions, as a picture."""

from collections.abc import Sequence
from pathlib import Path

from lipforge.errors import InputError, import_extra
from lipforge.results import CorruptResult, CurveResult


def check_picture(path: str | Path) -> None:
    """Raise unless `path` names a kind of picture, and what draws it is installed."""
    if Path(path).suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"the plot must be saved as .png, .svg or .pdf, got {path}")
    import_extra("matplotlib", "plots")  # before hours of work


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


def plot_corruptions(found: Sequence[CorruptResult], path: str | Path) -> None:
    """Save the accuracy under each corruption of each classifier, with 95 % intervals over the images."""
    check_picture(path)
    figure = import_extra("matplotlib.figure", "plots").Figure(figsize=(8, 4.4), layout="constrained")
    axes, first = figure.add_subplot(), found[0]
    for number, one in enumerate(found):
        groups = [(one.clean_accuracy, one.clean_interval), *map(one.accuracy_of, one.corruptions)]
        heights, ranges = [100 * share for share, _ in groups], [interval for _, interval in groups]
        errors = [[abs(100 * bounds[side] - height) for height, bounds in zip(heights, ranges, strict=True)]
                  for side in (0, 1)]  # fmt: skip
        places = [place + (number - (len(found) - 1) / 2) * 0.8 / len(found) for place in range(len(groups))]
        axes.bar(
            places, heights, 0.8 / len(found), yerr=errors, color=f"C{number}", label=one.label, error_kw={"lw": 1}
        )
    names = ["clean", *(name.replace("_", " ") for name in first.corruptions)]
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=8)
    axes.set(ylabel="accuracy, %", ylim=(0, 100))
    severities = ", ".join(map(str, first.severities))
    title = f"{first.source}, mean of severities {severities}; {first.data}, n = {first.count}, 95 % intervals"
    axes.set_title(title, fontsize=9)
    axes.grid(alpha=0.3, axis="y")
    axes.legend(fontsize=8)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
