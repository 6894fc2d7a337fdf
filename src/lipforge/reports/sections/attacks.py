"""What each attack of a cascade took, and what it cost."""

from collections import defaultdict
from collections.abc import Sequence

from lipforge.progress import duration
from lipforge.reports.blocks import Figure, Grid, Section
from lipforge.reports.charts import Axis, Bar, Row, Rows
from lipforge.reports.parsed import Robust, Stage, robust_results, roles
from lipforge.reports.read import Run
from lipforge.reports.tables import Column, Table

Key = tuple[str, int]


def waterfall(run: Run) -> Section | None:
    """Per setting, how many images each attack took from those that the ones before had left."""
    groups: dict[tuple[str, str, int], list[Robust]] = defaultdict(list)
    found = robust_results(run)
    colours = roles(result.label for result in found)
    for result in found:
        groups[result.attack, result.threat, result.count].append(result)
    figures = [_figure(same, colours) for same in groups.values()]
    if not figures:
        return None
    lead = (
        "Attacks run one after the other, each on the images that still stand. Where a late or black-box attack takes "
        "many images that gradient attacks left, gradients are masked."
    )
    return Section("waterfall", "What each attack took", lead, tuple(figures))


def _figure(same: Sequence[Robust], colours: dict[str, str]) -> Figure:
    first = same[0]
    steps = {result.label: _steps(result) for result in same}
    keys = _order([list(taken) for taken in steps.values()])
    rows = [Row("wrong before any attack", tuple(_wrong(result, colours) for result in same))]
    rows += [Row(_spell(key), tuple(_took(r, steps[r.label], key, colours) for r in same)) for key in keys]
    rows.append(Row("still robust", tuple(_rest(result, colours) for result in same)))
    left = "; ".join(f"{r.label}: {round(r.robust * r.count)} of {r.count} still robust" for r in same)
    chart = Rows(
        alt=f"Images that each attack of {first.attack} took. {left}.",
        x=Axis("images", (0.0, float(first.count)), whole=True),
        rows=tuple(rows),
        legend=tuple((colours[result.label], result.label) for result in same),
    )
    caption = f"{first.attack}, {first.threat}: images that each attack took, from {first.count:,} at the right."
    return Figure(caption, (chart,), _table(same, steps, keys))


def _steps(result: Robust) -> dict[Key, tuple[int, int]]:
    """For each attack how many images stood before it and after it, in order."""
    right, robust = round(result.clean * result.count), round(result.robust * result.count)
    stages = [stage for stage in result.stages if stage.attack != "clean"]
    if not stages:
        return {(result.attack, 0): (right, robust)}
    taken: dict[Key, tuple[int, int]] = {}
    before = right
    for stage in stages:
        taken[stage.attack, sum(key[0] == stage.attack for key in taken)] = (before, stage.robust)
        before = stage.robust
    return taken


def _order(lists: Sequence[Sequence[Key]]) -> list[Key]:
    order: list[Key] = []
    for keys in lists:
        place = 0
        for key in keys:
            if key not in order:
                order.insert(place, key)
            place = order.index(key) + 1
    return order


def _spell(key: Key) -> str:
    return key[0] if key[1] == 0 else f"{key[0]} (again, {key[1] + 1})"


def _wrong(result: Robust, colours: dict[str, str]) -> Bar:
    right = round(result.clean * result.count)
    tip = f"{result.label}: {result.count - right} of {result.count} images wrong before any attack"
    return Bar(colours[result.label], right, result.count, tip, f"{result.count - right}", faint=True)


def _took(result: Robust, taken: dict[Key, tuple[int, int]], key: Key, colours: dict[str, str]) -> Bar:
    if key not in taken:
        return Bar(colours[result.label], 0, 0, f"{result.label}: {_spell(key)} was not run", "not run", faint=True)
    before, after = taken[key]
    tip = f"{result.label}: {_spell(key)} took {before - after} images, {after} of {before} still stand"
    return Bar(colours[result.label], after, before, tip, f"-{before - after}" if before > after else "0")


def _rest(result: Robust, colours: dict[str, str]) -> Bar:
    robust = round(result.robust * result.count)
    given_up = f"; {result.given_up} of them were given up before the last round" if result.given_up else ""
    tip = f"{result.label}: {robust} of {result.count} images still robust{given_up}"
    return Bar(colours[result.label], 0, robust, tip, f"{robust}")


def _table(same: Sequence[Robust], steps: dict[str, dict[Key, tuple[int, int]]], keys: Sequence[Key]) -> Table:
    columns = [Column("attack")]
    for result in same:
        columns += [Column(f"{result.label} took", "count"), Column(f"{result.label} left", "count")]
    rows = []
    for key in keys:
        cells: list[str | int | None] = [_spell(key)]
        for result in same:
            before, after = steps[result.label].get(key, (None, None))
            cells += [None if before is None or after is None else before - after, after]
        rows.append(tuple(cells))
    return Table("attacks", f"Images that each attack of {same[0].attack} took", tuple(columns), tuple(rows))


def cost(run: Run) -> Section | None:
    """Passes and seconds, attack by attack."""
    found = robust_results(run)
    rows = [
        (result.label, stage.attack, result.threat, stage.forwards, stage.backwards, stage.seconds)
        for result in found
        for stage in result.stages or (_whole(result),)
    ]
    if not rows:
        return None
    columns = (Column("classifier"), Column("attack"), Column("threat"), Column("forward passes", "count"),
               Column("backward passes", "count"), Column("time", "seconds"))  # fmt: skip
    total = sum(result.seconds for result in found)
    passes = sum(result.forwards + result.backwards for result in found)
    lead = (
        f"{passes:,} passes of single images in {duration(total)} of device time in all. "
        "Passes are counted per image and do not depend on the machine; seconds do."
    )
    table = Table("cost", "Cost of each attack", columns, tuple(rows))
    return Section("cost", "Cost", lead, (_cost_figure(found), Grid(table)))


def _whole(result: Robust) -> Stage:
    return Stage(result.attack, 0, result.forwards, result.backwards, result.seconds)


def _cost_figure(found: Sequence[Robust]) -> Figure:
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
    chart = Rows(
        alt="Device seconds of each attack: "
        + "; ".join(f"{attack} {duration(sum(by.values()))}" for attack, by in spent.items()),
        x=Axis("device seconds", (0.0, largest or 1.0)),
        rows=tuple(rows),
        legend=tuple((role, label) for label, role in colours.items()),
    )
    return Figure("Device time that each attack took.", (chart,))
