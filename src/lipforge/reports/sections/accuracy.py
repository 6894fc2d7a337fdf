"""Evaluations under attack: accuracies with intervals, what each attack of a cascade broke, and what it cost."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from lipforge.errors import InputError
from lipforge.reports.blocks import Block, Figure, Grid, Prose, Section
from lipforge.reports.charts import Axis, Bar, Row, Rows, percent_axis
from lipforge.reports.read import Run, is_base, roles
from lipforge.reports.tables import Cell, Column, Share, Table
from lipforge.results import Comparison, RobustResult, Stage, StageKey, common_order, numbered
from lipforge.statistics import compare
from lipforge.text import duration, percent, share_text

Steps = dict[StageKey, tuple[int, int]]
"""For each attack of a cascade, in order, how many images were robust before it and after it."""


def accuracy(run: Run) -> Section | None:
    """Every evaluation as a dot with its interval, a table, paired comparisons, and the notes of the attacks."""
    found, comparisons = run.evaluations, _comparisons(run)
    if not found and comparisons is None:
        return None
    blocks: list[Block] = [_figure(found), Grid(_table(found))] if found else []
    if comparisons is not None:
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
    clean: dict[int, list[RobustResult]] = defaultdict(list)
    for result in {(result.data, result.label, result.count): result for result in found}.values():
        clean[result.count].append(result)
    rows = [Row(f"clean, n = {n:,}", tuple(_dot(r, colours, clean=True) for r in same)) for n, same in clean.items()]
    rows += [
        Row(f"{attack}, {threat}, n = {n:,}", tuple(_dot(r, colours) for r in same))
        for (attack, threat, n), same in _by_setting(found).items()
    ]
    said = "; ".join(f"{r.label} {percent(r.robust_accuracy)} % under {r.attack} {r.threat}" for r in found)
    chart = Rows(
        alt=f"Accuracies with intervals. {said}.",
        x=percent_axis("accuracy, %"),
        rows=tuple(rows),
        legend=tuple((role, label) for label, role in colours.items()),
        glyph="interval",
    )
    return Figure("Accuracy on clean images and under each attack, with 95 % intervals.", (chart,))


def _by_setting(found: Iterable[RobustResult]) -> dict[tuple[str, str, int], list[RobustResult]]:
    """Evaluations that differ in the classifier alone, together."""
    groups: dict[tuple[str, str, int], list[RobustResult]] = defaultdict(list)
    for result in found:
        groups[result.attack, result.threat, result.count].append(result)
    return groups


def _dot(result: RobustResult, colours: dict[str, str], *, clean: bool = False) -> Bar:
    what = "clean" if clean else f"{result.attack}, {result.threat}"
    value, interval = (
        (result.clean_accuracy, result.clean_interval) if clean else (result.robust_accuracy, result.interval)
    )
    tip = f"{result.label}, {what}: {share_text(value, interval)} %, n = {result.count:,}"
    return Bar(colours[result.label], *interval, tip, percent(value), at=value)


def _table(found: Sequence[RobustResult]) -> Table:
    columns = (Column("classifier"), Column("attack"), Column("threat"), Column("n", "count"), Column("seed", "count"),
               Column("clean", "share"), Column("robust", "share"), Column("gained", "count"),
               Column("lost", "count"))  # fmt: skip
    rows = []
    for result in found:
        others = (paired(base, result) for base in found if is_base(base.label) and base is not result)
        changes = next((both for both in others if both is not None), None)
        rows.append(
            (result.label, result.attack, result.threat, result.count, result.seed,
             Share(result.clean_accuracy, result.clean_interval), Share(result.robust_accuracy, result.interval),
             *((changes.gained, changes.lost) if changes else (None, None)))
        )  # fmt: skip
    title = "Clean and robust accuracy; gained and lost images are against the base under the same attack"
    return Table("accuracy", title, columns, tuple(rows))


def paired(base: RobustResult, candidate: RobustResult) -> Comparison | None:
    """The comparison of two evaluations; None if they are not of the same images under the same attack."""
    try:
        return compare(base, candidate)
    except InputError:
        return None


def _comparisons(run: Run) -> Table | None:
    columns = (Column("comparison"), Column("attack"), Column("n", "count"), Column("base", "share"),
               Column("candidate", "share"), Column("difference (points)", "points"), Column("gained", "count"),
               Column("lost", "count"), Column("p", "number"))  # fmt: skip
    rows = [
        (name.removeprefix("comparison").strip("_-") or "base and forged", _attack_of(found, run.evaluations),
         *comparison_cells(found))
        for name, found in run.results.items() if isinstance(found, Comparison)
    ]  # fmt: skip
    return Table("paired", "Paired comparison on the same images", columns, tuple(rows)) if rows else None


def comparison_cells(found: Comparison) -> tuple[Cell, ...]:
    """n, both shares, their difference, gained and lost images, and p."""
    shares = Share(found.base_accuracy), Share(found.candidate_accuracy), Share(found.difference, found.interval)
    return found.count, *shares, found.gained, found.lost, found.p_value


def _attack_of(comparison: Comparison, found: Sequence[RobustResult]) -> str:
    """The attack of the two evaluations that were compared, where the run holds them."""
    pairs = ((base, result) for base in found for result in found if base is not result)
    return next((f"{r.attack}, {r.threat}" for base, r in pairs if paired(base, r) == comparison), "")


def waterfall(run: Run) -> Section | None:
    """Per setting, how many images each attack broke of those that were robust before it."""
    found = run.evaluations
    colours = roles(result.label for result in found)
    figures = tuple(_waterfall(same, colours) for same in _by_setting(found).values())
    lead = (
        "Attacks run one after the other, each on the images that are still robust. Where a late or black-box attack "
        "breaks many images that gradient attacks did not, gradients are masked."
    )
    return Section("waterfall", "What each attack broke", lead, figures) if figures else None


def _waterfall(same: Sequence[RobustResult], colours: dict[str, str]) -> Figure:
    first = same[0]
    steps = {result.label: _steps(result) for result in same}
    keys = common_order([list(found) for found in steps.values()])
    rows = [Row("misclassified before any attack", tuple(_wrong(result, colours) for result in same))]
    rows += [Row(_spell(key), tuple(_broken(r, steps[r.label], key, colours) for r in same)) for key in keys]
    rows.append(Row("robust", tuple(_robust(result, colours) for result in same)))
    said = "; ".join(f"{r.label}: {round(r.robust_accuracy * r.count)} of {r.count} robust" for r in same)
    chart = Rows(
        alt=f"Images that each attack of {first.attack} broke. {said}.",
        x=Axis("images", (0.0, float(first.count)), whole=True),
        rows=tuple(rows),
        legend=tuple((colours[result.label], result.label) for result in same),
    )
    caption = f"{first.attack}, {first.threat}: images that each attack broke, from n = {first.count:,} at the right."
    return Figure(caption, (chart,), _waterfall_table(same, steps, keys))


def _steps(result: RobustResult) -> Steps:
    before, robust = (round(share * result.count) for share in (result.clean_accuracy, result.robust_accuracy))
    stages = numbered(stage for stage in result.stages if stage.attack != "clean")
    if not stages:
        return {(result.attack, 0): (before, robust)}
    steps: Steps = {}
    for key, stage in stages.items():
        steps[key] = before, stage.robust
        before = stage.robust
    return steps


def _spell(key: StageKey) -> str:
    return key[0] if key[1] == 0 else f"{key[0]} (again, {key[1] + 1})"


def _wrong(result: RobustResult, colours: dict[str, str]) -> Bar:
    right = round(result.clean_accuracy * result.count)
    tip = f"{result.label}: {result.count - right} of {result.count} images misclassified before any attack"
    return Bar(colours[result.label], right, result.count, tip, f"{result.count - right}", faint=True)


def _broken(result: RobustResult, steps: Steps, key: StageKey, colours: dict[str, str]) -> Bar:
    if key not in steps:
        return Bar(colours[result.label], 0, 0, f"{result.label}: {_spell(key)} was not run", "not run", faint=True)
    before, after = steps[key]
    tip = f"{result.label}: {_spell(key)} broke {before - after} of {before} images, {after} are still robust"
    return Bar(colours[result.label], after, before, tip, f"-{before - after}" if before > after else "0")


def _robust(result: RobustResult, colours: dict[str, str]) -> Bar:
    robust = round(result.robust_accuracy * result.count)
    stopped = f"; {result.early_stopped} of them were early-stopped" if result.early_stopped else ""
    tip = f"{result.label}: {robust} of {result.count} images robust{stopped}"
    return Bar(colours[result.label], 0, robust, tip, f"{robust}")


def _waterfall_table(same: Sequence[RobustResult], steps: dict[str, Steps], keys: Sequence[StageKey]) -> Table:
    columns = [Column("attack")]
    for result in same:
        columns += [Column(f"{result.label}: broken", "count"), Column(f"{result.label}: robust after", "count")]
    rows = []
    for key in keys:
        cells: list[Cell] = [_spell(key)]
        for result in same:
            before, after = steps[result.label].get(key, (None, None))
            cells += [None if before is None or after is None else before - after, after]
        rows.append(tuple(cells))
    return Table("attacks", f"Images that each attack of {same[0].attack} broke", tuple(columns), tuple(rows))


def cost(run: Run) -> Section | None:
    """Passes and seconds, attack by attack."""
    found = run.evaluations
    if not found:
        return None
    rows = [
        (result.label, stage.attack, result.threat, stage.forwards, stage.backwards, stage.seconds)
        for result in found
        for stage in _stages(result)
    ]
    columns = (Column("classifier"), Column("attack"), Column("threat"), Column("forward passes", "count"),
               Column("backward passes", "count"), Column("time", "seconds"))  # fmt: skip
    passes = sum(result.forwards + result.backwards for result in found)
    lead = (
        f"{passes:,} passes of single images in {duration(sum(result.seconds for result in found))} of device time. "
        "Passes are counted per image and do not depend on the machine; seconds do."
    )
    table = Table("cost", "Cost of each attack", columns, tuple(rows))
    return Section("cost", "Cost", lead, (_cost_figure(found), Grid(table)))


def _stages(result: RobustResult) -> tuple[Stage, ...]:
    """The stages of an evaluation; a single attack is one stage."""
    return result.stages or (Stage(result.attack, 0, result.forwards, result.backwards, result.seconds),)


def _cost_figure(found: Sequence[RobustResult]) -> Figure:
    colours = roles(result.label for result in found)
    spent: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for result in found:
        for stage in _stages(result):
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
