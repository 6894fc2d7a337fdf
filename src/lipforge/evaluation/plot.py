"""The trade-off that a search found, as a picture."""

from pathlib import Path

from lipforge.errors import InputError
from lipforge.evaluation.scores import SearchResult


def check_picture(path: str | Path) -> None:
    """Raise unless `path` names a kind of picture that can be written."""
    if Path(path).suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"the plot must be saved as .png, .svg or .pdf, got {path}")


def plot_tradeoff(result: SearchResult, path: str | Path) -> None:
    """Save clean against robust accuracy of every attacked ratio, with 95 % intervals, as .png, .svg or .pdf."""
    check_picture(path)
    from matplotlib.figure import Figure  # here: it takes half a second to import

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for score in result.scores:
        if score.robust_accuracy is None or score.interval is None:
            continue
        x, y = 100 * score.clean_accuracy, 100 * score.robust_accuracy
        across = [[x - 100 * score.clean_interval[0]], [100 * score.clean_interval[1] - x]]
        up = [[y - 100 * score.interval[0]], [100 * score.interval[1] - y]]
        chosen = score.ratio == result.chosen
        axes.errorbar(
            x,
            y,
            xerr=across,
            yerr=up,
            fmt="s" if score.status == "base" else "o",
            color="tab:red" if chosen else "tab:gray" if score.status == "base" else "tab:blue",
            capsize=2,
            elinewidth=0.7,
        )
        words = f"{score.label}{' (chosen)' if chosen else ''}{' (stopped)' if score.status == 'stopped' else ''}"
        axes.annotate(words, (x, y), xytext=(5, 5), textcoords="offset points", fontsize=8)
    axes.set_xlabel("clean accuracy, %")
    axes.set_ylabel("robust accuracy, %")
    axes.set_title(f"{result.attack} {result.threat}, {result.metric}, n={result.count}", fontsize=9)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
