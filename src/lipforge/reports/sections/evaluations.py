"""Evaluations under attack: accuracies with intervals, what each attack of a cascade broke, and what it cost."""

from collections import defaultdict
from collections.abc import Sequence

from lipforge.errors import InputError
from lipforge.reports.blocks import Block, Figure, Grid, Prose, Section
from lipforge.reports.charts import Axis, Bar, Row, Rows, percent_axis
from lipforge.reports.read import Run, grouped, is_base, roles
from lipforge.reports.tables import Cell, Column, Share, Table, columns
from lipforge.results import Comparison, RobustResult, Stage, StageKey, common_order, numbered
from lipforge.statistics import compare
from lipforge.text import duration, percent, share_text

Steps = dict[StageKey, tuple[int, int]]
"""For each attack of a cascade, in order, how many images it broke and how many were robust after it."""

SETTING = ("attack", "threat", "count")
"""Evaluations that agree in these differ in the classifier alone."""

PAIRED = columns("n:count", "base:share", "candidate:share", "difference (points):points", "gained:count", "lost:count",
                 "p:number")  # fmt: skip
"""The columns of `comparison_cells`."""


def accuracy(run: Run) -> Section:
    """Every evaluation as a dot with its interval, a table, paired comparisons, and the notes of the attacks."""
    found, comparisons = run.evaluations, _comparisons(run)
    blocks: list[Block] = [_figure(found), Grid(_table(found))] if found else []
    if comparisons.rows:
        note = "A gained image is robust only on the candidate, a lost one only on the base. p: exact McNemar test."
        blocks.append(Grid(comparisons, note))
    if notes := tuple(f"{result.label}, {result.attack}: {note}" for result in found for note in result.notes):
        blocks.append(Prose("Notes (reasons not to trust these numbers):", notes))
    counts = " and ".join(f"{count:,}" for count in sorted({result.count for result in found}))
    lead = (
        (f"n = {counts}. " if counts else "")
        + "An image is robust if it is classified correctly and no attack changed that. "
        "Bars are 95 % intervals; a paired comparison of the same images is sharper."
    )
    return Section("accuracy", "Clean and robust accuracy", lead, tuple(blocks))


def _figure(found: Sequence[RobustResult]) -> Figure:
    colours = roles(result.label for result in found)
    clean = {(result.data, result.label, result.count): result for result in found}.values()
    rows = [
        Row(f"clean, n = {n:,}", tuple(dot(f"{r.label}, clean", colours[r.label], r, clean=True) for r in same))
        for n, same in grouped(clean, "count").items()
    ]
    for (attack, threat, n), same in grouped(found, *SETTING).items():
        bars = tuple(dot(f"{r.label}, {attack}, {threat}", colours[r.label], r) for r in same)
        rows.append(Row(f"{attack}, {threat}, n = {n:,}", bars))
    said = "; ".join(f"{r.label} {percent(r.robust_accuracy)} % under {r.attack} {r.threat}" for r in found)
    chart = Rows(
        alt=f"Accuracies with intervals. {said}.",
        x=percent_axis("accuracy, %"),
        rows=tuple(rows),
        legend=tuple((role, label) for label, role in colours.items()),
        glyph="interval",
    )
    return Figure("Accuracy on clean images and under each attack, with 95 % intervals.", (chart,))


def dot(name: str, role: str, result: RobustResult, *, clean: bool = False) -> Bar:
    """The accuracy of an evaluation with its interval; `name` says what it is."""
    value = result.clean_accuracy if clean else result.robust_accuracy
    interval = result.clean_interval if clean else result.interval
    tip = f"{name}: {share_text(value, interval)} %, n = {result.count:,}"
    return Bar(role, *interval, tip, percent(value), at=value)


def _table(found: Sequence[RobustResult]) -> Table:
    heading = columns("classifier", "attack", "threat", "n:count", "seed:count", "clean:share", "robust:share",
                      "gained:count", "lost:count")  # fmt: skip
    rows = []
    for result in found:
        others = (paired(base, result) for base in found if is_base(base.label) and base is not result)
        changes = next((both for both in others if both is not None), None)
        rows.append(
            (result.label, result.attack_text, result.threat, result.count, result.seed,
             Share(result.clean_accuracy, result.clean_interval), Share(result.robust_accuracy, result.interval),
             *((changes.gained, changes.lost) if changes else (None, None)))
        )  # fmt: skip
    title = "Clean and robust accuracy; gained and lost images are against the base under the same attack"
    return Table("accuracy", title, heading, tuple(rows))


def paired(base: RobustResult, candidate: RobustResult) -> Comparison | None:
    """The comparison of two evaluations; None if they are not of the same images under the same attack."""
    try:
        return compare(base, candidate)
    except InputError:
        return None


def _comparisons(run: Run) -> Table:
    rows = [
        (name.removeprefix("comparison").strip("_-") or "base and forged", _attack_of(found, run.evaluations),
         *comparison_cells(found))
        for name, found in run.results.items() if isinstance(found, Comparison)
    ]  # fmt: skip
    heading = (*columns("comparison", "attack"), *PAIRED)
    return Table("paired", "Paired comparison on the same images", heading, tuple(rows))


def comparison_cells(found: Comparison) -> tuple[Cell, ...]:
    """n, both shares, their difference, gained and lost images, and p."""
    shares = Share(found.base_accuracy), Share(found.candidate_accuracy), Share(found.difference, found.interval)
    return found.count, *shares, found.gained, found.lost, found.p_value


def _attack_of(comparison: Comparison, found: Sequence[RobustResult]) -> str:
    """The attack of the two evaluations that were compared, where the run holds them."""
    pairs = ((base, result) for base in found for result in found if base is not result)
    return next((f"{r.attack}, {r.threat}" for base, r in pairs if paired(base, r) == comparison), "")


def waterfall(run: Run) -> Section:
    """Per setting, how many images each attack broke of those that were robust before it."""
    found = run.evaluations
    colours = roles(result.label for result in found)
    figures = tuple(_waterfall(same, colours) for same in grouped(found, *SETTING).values())
    lead = (
        "Attacks run one after the other, each on the images that are still robust. Where a late or black-box attack "
        "breaks many images that gradient attacks did not, gradients are masked."
    )
    return Section("waterfall", "What each attack broke", lead, figures)


def _waterfall(same: Sequence[RobustResult], colours: dict[str, str]) -> Figure:
    first = same[0]
    steps = {result.label: _steps(result) for result in same}
    keys = common_order([list(found) for found in steps.values()])
    names = ["misclassified before any attack", *map(_spell, keys), "robust"]
    bars = (_bars(result, colours[result.label], steps[result.label], keys) for result in same)
    said = "; ".join(f"{r.label}: {round(r.robust_accuracy * r.count)} of {r.count} robust" for r in same)
    chart = Rows(
        alt=f"Images that each attack of {first.attack} broke. {said}.",
        x=Axis("images", (0.0, float(first.count)), whole=True),
        rows=tuple(Row(name, beside) for name, beside in zip(names, zip(*bars, strict=True), strict=True)),
        legend=tuple((colours[result.label], result.label) for result in same),
    )
    caption = f"{first.attack}, {first.threat}: images that each attack broke, from n = {first.count:,} at the right."
    heading = [Column("attack")]
    for result in same:
        heading += [Column(f"{result.label}: broken", "count"), Column(f"{result.label}: robust after", "count")]
    cells = tuple(
        (_spell(key), *(cell for r in same for cell in steps[r.label].get(key, (None, None)))) for key in keys
    )
    title = f"Images that each attack of {first.attack} broke"
    return Figure(caption, (chart,), Table("attacks", title, tuple(heading), cells))


def _steps(result: RobustResult) -> Steps:
    before = round(result.clean_accuracy * result.count)
    stages = [stage for stage in result.stages if stage.attack != "clean"] or [_whole(result)]
    steps: Steps = {}
    for key, stage in numbered(stages).items():
        steps[key] = before - stage.robust, stage.robust
        before = stage.robust
    return steps


def _whole(result: RobustResult) -> Stage:
    robust = round(result.robust_accuracy * result.count)
    return Stage(result.attack, robust, result.forwards, result.backwards, result.seconds)


def _spell(key: StageKey) -> str:
    return key[0] if key[1] == 0 else f"{key[0]} (again, {key[1] + 1})"


def _bars(result: RobustResult, role: str, steps: Steps, keys: Sequence[StageKey]) -> list[Bar]:
    label, n = result.label, result.count
    right, robust = (round(share * n) for share in (result.clean_accuracy, result.robust_accuracy))
    tip = f"{label}: {n - right} of {n} images misclassified before any attack"
    bars = [Bar(role, right, n, tip, f"{n - right}", faint=True)]
    for key in keys:
        if key not in steps:
            bars.append(Bar(role, 0, 0, f"{label}: {_spell(key)} was not run", "not run", faint=True))
            continue
        broken, after = steps[key]
        tip = f"{label}: {_spell(key)} broke {broken} of {broken + after} images, {after} are still robust"
        bars.append(Bar(role, after, broken + after, tip, f"-{broken}" if broken > 0 else "0"))
    stopped = f"; {result.early_stopped} of them were early-stopped" if result.early_stopped else ""
    return [*bars, Bar(role, 0, robust, f"{label}: {robust} of {n} images robust{stopped}", f"{robust}")]


def cost(run: Run) -> Section:
    """Passes and seconds, attack by attack."""
    found = run.evaluations
    rows = tuple(
        (result.label, stage.attack, result.threat, stage.forwards, stage.backwards, stage.seconds)
        for result in found
        for stage in result.stages or (_whole(result),)
    )
    heading = columns("classifier", "attack", "threat", "forward passes:count", "backward passes:count", "time:seconds")
    passes = sum(result.forwards + result.backwards for result in found)
    lead = (
        f"{passes:,} passes of single images in {duration(sum(result.seconds for result in found))} of device time. "
        "Passes are of the whole classifier (with TTA, the mean over all transforms), counted per image. They do not "
        "depend on the machine; seconds do."
    )
    table = Table("cost", "Cost of each attack", heading, rows)
    return Section("cost", "Cost", lead, (_cost_figure(found), Grid(table)) if found else ())


def _cost_figure(found: Sequence[RobustResult]) -> Figure:
    colours = roles(result.label for result in found)
    spent: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for result in found:
        for stage in result.stages or (_whole(result),):
            spent[stage.attack][result.label] += stage.seconds
    rows = [
        Row(attack, tuple(
            Bar(colours[label], 0, seconds, f"{label}, {attack}: {duration(seconds)}", duration(seconds))
            for label, seconds in by_label.items()
        ))
        for attack, by_label in spent.items()
    ]  # fmt: skip
    largest = max((seconds for by_label in spent.values() for seconds in by_label.values()), default=0.0)
    said = "; ".join(f"{attack} {duration(sum(by_label.values()))}" for attack, by_label in spent.items())
    chart = Rows(
        alt=f"Device seconds of each attack: {said}",
        x=Axis("device seconds", (0.0, largest or 1.0)),
        rows=tuple(rows),
        legend=tuple((role, label) for label, role in colours.items()),
    )
    return Figure("Device time of each attack.", (chart,))
