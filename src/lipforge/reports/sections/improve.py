"""Post-hoc changes that were tried: robust accuracy over what they cost."""

from collections.abc import Callable

from lipforge.reports.blocks import Block, Figure, Prose, Section
from lipforge.reports.charts import Axis, Lines, Point, Series, percent_tick
from lipforge.reports.read import Run
from lipforge.reports.tables import Cell, Share, Table, columns
from lipforge.results import CandidateScore, Improvement
from lipforge.text import percent, points_text, share_text


def improvements(run: Run) -> Section:
    """One figure per `improve`: a panel over forward passes per image, and one over the time of fitting."""
    blocks: list[Block] = []
    for found in run.of(Improvement):
        blocks += [_figure(found), Prose("The choice, and notes:", tuple(filter(None, (found.reason, *found.notes))))]
    lead = (
        "Each point is a change of the trained model, attacked on validation images as the base was. The best of many "
        "looks better than it is; the audit judges the choice on images that it has not seen."
    )
    return Section("improve", "Changes that were tried", lead, tuple(blocks))


def _figure(found: Improvement) -> Figure:
    panels = [_panel(found, "forward passes per image", lambda score: float(score.cost))]
    if any(score.preparation for score in found.candidates):
        panels.append(_panel(found, "minutes of fitting", lambda score: score.preparation / 60))
    title = f"{found.attack} {found.threat} and restarts or BPDA, {found.data}, n = {found.count:,}"
    caption = f"Robust accuracy over cost ({title}). Chosen: {found.chosen}."
    return Figure(caption, tuple(panels), _table(found, f"Changes that were tried ({title})"))


def _panel(found: Improvement, title: str, cost: Callable[[CandidateScore], float]) -> Lines:
    roles = {"base": "base", found.chosen: "forged"}
    series: dict[tuple[str, str], list[Point]] = {}
    for score in found.candidates:
        name = "base" if score.status == "base" else "chosen" if score.label == found.chosen else "other"
        key = (name, roles.get("base" if name == "base" else score.label, "third"))
        tip = f"{score.label}: robust {share_text(score.robust_accuracy, score.interval)} %, n = {score.count:,}"
        series.setdefault(key, []).append(Point(cost(score), score.robust_accuracy, tip, score.interval))
    values = [value for some in series.values() for point in some for value in (point.interval or (point.y,))]
    highest = max(cost(score) for score in found.candidates)
    return Lines(
        alt=f"Robust accuracy over {title}: "
        + ", ".join(f"{score.label} {percent(score.robust_accuracy)} %" for score in found.candidates),
        x=Axis(title, (-0.05 * highest, 1.08 * highest) if highest else None),
        y=Axis("%", (max(min(values) - 0.02, 0.0), min(max(values) + 0.02, 1.0)), percent_tick),
        series=tuple(Series(name, role, tuple(points), joined=False) for (name, role), points in series.items()),
        height=250.0,
        title=f"over {title}",
        level=found.candidates[0].robust_accuracy,
    )


def _table(found: Improvement, title: str) -> Table:
    heading = columns("change", "passes:count", "fitting", "n:count", "clean:share", "robust:share", "robust change",
                      "clean change", "gained:count", "lost:count", "corrected p", "status")  # fmt: skip
    return Table("improve", title, heading, tuple(_row(found, score) for score in found.candidates))


def _row(found: Improvement, score: CandidateScore) -> tuple[Cell, ...]:
    changes = (score.robust_change, score.clean_change)
    robust, clean = (None if one is None else points_text(one.difference, one.interval) for one in changes)
    counts = (None, None) if score.robust_change is None else (score.robust_change.gained, score.robust_change.lost)
    name = f"{score.label} (chosen)" if score.label == found.chosen else score.label
    name += " (unreliable: gradients look masked)" if score.unreliable else ""
    return (name, score.cost, f"{score.preparation:.0f} s", score.count,
            Share(score.clean_accuracy, score.clean_interval), Share(score.robust_accuracy, score.interval), robust,
            clean, *counts, None if score.p_value is None else f"{score.p_value:.2g}", score.status)  # fmt: skip
