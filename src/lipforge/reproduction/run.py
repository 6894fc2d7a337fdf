"""A table of the paper, measured again, model by model: what is missing is named, and the rest is done."""

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from torch import nn

from lipforge.errors import DataError, InputError, MissingExtraError, WeightsError
from lipforge.evaluation import BATCH_SIZE, PROBE, clean_accuracy, estimate, evaluate, in_dtype, score_saved
from lipforge.forge import plain
from lipforge.paper import PaperModel, Published, load_paper
from lipforge.paper.settings import PaperTable
from lipforge.ranks import by_torchrun, is_first
from lipforge.reproduction.plan import (
    AUTOATTACK,
    CLEAN,
    TRANSFER,
    Cell,
    Group,
    Setting,
    by_model,
    cells,
    check_choices,
    idle_notes,
    published_rows,
)
from lipforge.reproduction.sources import Source
from lipforge.reproduction.subject import Subject
from lipforge.results import CleanResult, Estimate, ReproducedRow, Reproduction, RobustResult
from lipforge.results.reproduction import is_inside
from lipforge.runs import RunDir, slug
from lipforge.text import ratio_text
from lipforge.types import Threat

MISSING = (WeightsError, DataError, MissingExtraError)
"""What a user may lack: said in the rows it is about, while the rest goes on."""
STAND_IN = "stand-in: bundled models, a few images and short attacks; the numbers mean nothing, the layout is the same"


def reproduce(
    table: str,
    source: Source | None = None,
    *,
    row: str = "*",
    ratios: Sequence[float] = (),
    frequencies: Sequence[float] = (),
    leave_robust_clean: bool = False,
    force: bool = False,
    run: RunDir | None = None,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    show_progress: bool | None = None,
) -> Reproduction:
    """Every number of a table ("1a", "10", ...) whose model matches the glob `row`, measured beside the published one.

    `source` says where checkpoints and data are, or asks for stand-ins. `ratios` are measured where the paper states
    none, and `frequencies` for "+ Weight". A base whose clean accuracy cannot be RobustBench's is an error unless
    `force`. `leave_robust_clean` makes the transfer tables from what AutoAttack's own code returns: an image that is
    robust on the base stays clean. One `run` can hold all tables: the same call resumes, tables share what they have
    in common, and the ranks of torchrun share the work.
    """
    source = source or Source()
    about, chosen = _table(table, source), published_rows(table, row)
    check_choices(ratios, frequencies)
    found: list[tuple[Published, ReproducedRow]] = []
    left_clean = leave_robust_clean and any(one.attack == TRANSFER for one in chosen)
    groups = {
        source.settings.model(*name): cells(published, source.settings, ratios, frequencies)
        for name, published in by_model(chosen).items()
    }
    notes = _notes(source, groups, leave_robust_clean, left_clean)
    notes += idle_notes(list(groups.values()), ratios, frequencies)
    with kept_in(run) as kept:
        bench = Bench(kept, seed, batch_size, leave_robust_clean, show_progress)
        load = partial(Subject.load, source=source, run=kept, count=about.count, show_progress=show_progress)
        bases: dict[PaperModel, CleanResult] = {}
        for paper, group in groups.items():  # all before the first attack, one model at a time in memory
            try:
                bases[paper] = load(paper).check_base(force=force)
            except MISSING as error:
                found += _unmeasured(group.values(), error)
        for paper, clean in bases.items():
            found += _measure(bench, load(paper), groups[paper], clean)
    place = {published: at for at, published in enumerate(chosen)}
    rows = tuple(row for _, row in sorted(found, key=lambda pair: place[pair[0]]))
    kind = ("" if row == "*" else slug(row), "left-clean" if left_clean else "", _in_16_bit(source))
    called = "__".join(filter(None, ("reproduction", f"table-{table}", *kind)))
    result = Reproduction(table, about.title, source.stand_in, seed, rows, tuple(notes), called, source.dtype)
    if run is not None and is_first():
        run.write_result(called, result)
    return result


def estimate_table(
    table: str,
    source: Source | None = None,
    *,
    row: str = "*",
    ratios: Sequence[float] = (),
    frequencies: Sequence[float] = (),
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    probe: int = PROBE,
    devices: int = 1,
    show_progress: bool | None = None,
) -> tuple[list[Estimate], list[str]]:
    """What the attacks of `reproduce` would cost, from a probe on each base, and why some models have no estimate.

    Forged models are taken to cost as much as their base. Calibration and clean accuracies are left out.
    """
    source = source or Source()
    about = _table(table, source)
    check_choices(ratios, frequencies)
    found, lacking = [], []
    for name, published in by_model(published_rows(table, row)).items():
        paper, label = source.settings.model(*name), " ".join(name)
        try:
            data = source.test(paper.dataset, about.count)
            model = in_dtype(source.model(paper), data.batch([0])[0], source.dtype)
        except MISSING as error:
            lacking.append(f"{label}: {error}")
            continue
        if len(data) < 2:
            raise InputError(f"an estimate needs at least 2 test images, got {len(data)}; raise the limit (--limit)")
        group = cells(published, source.settings, ratios, frequencies)
        for (attack, eps), times in _attacks(group).items():
            one = estimate(
                model, data, source.attack(attack), Threat("linf", eps), label=label, model_name=source.spec(paper),
                seed=seed, batch_size=batch_size, probe=min(probe, len(data)), devices=devices,
                show_progress=show_progress,
            )  # fmt: skip
            found.append(_times(one, times))
    return found, lacking


@dataclass(frozen=True)
class Bench:
    """What all measurements of a table share."""

    run: RunDir
    seed: int
    batch_size: int
    leave_robust_clean: bool
    show_progress: bool | None

    def attacked(self, subject: Subject, setting: Setting, view: nn.Module, attack: str, eps: str) -> RobustResult:
        # The transfer tables need the images of the base: kept the first time, it is attacked once for all tables.
        kept = attack == AUTOATTACK and setting.ratio == 0 and _has_transfer(subject)
        return evaluate(
            view,
            subject.test,
            subject.source.attack(attack),
            Threat("linf", eps),
            run=self.run,
            label=subject.label(setting),
            model_name=subject.source.spec(subject.paper),
            seed=self.seed,
            batch_size=self.batch_size,
            save_images=kept,
            show_progress=self.show_progress,
        )

    def transferred(self, subject: Subject, view: nn.Module, eps: str) -> CleanResult:
        base = Setting(0.0)
        crafted = self.attacked(subject, base, subject.judged(plain(subject.model)), AUTOATTACK, eps)
        return score_saved(
            view,
            subject.test,
            crafted,
            Threat("linf", eps),
            self.run,
            shard_size=self.batch_size,
            leave_robust_clean=self.leave_robust_clean,
        )


@dataclass(frozen=True)
class Found:
    """A measured share."""

    accuracy: float
    interval: tuple[float, float]
    count: int
    unreliable: bool = False


def _measure(
    bench: Bench, subject: Subject, group: Group, clean: CleanResult
) -> Iterator[tuple[Published, ReproducedRow]]:
    for setting, some in group.items():
        try:
            if setting.ratio != 0:
                subject.calibrate(setting, group)
        except MISSING as error:  # no training images, or too few
            yield from _unmeasured([some], error)
            continue
        with subject.seen_as(setting) as (view, note):
            for cell, found in _found(bench, subject, setting, view, some, clean):
                yield cell.published, _row(cell, found, subject, note)


def _found(
    bench: Bench, subject: Subject, setting: Setting, view: nn.Module, some: Sequence[Cell], clean: CleanResult
) -> Iterator[tuple[Cell, Found]]:
    """What was found for each cell of a setting; the clean accuracy comes from the first attack, if there is one."""
    at_hand = _of_clean(clean) if setting.ratio == 0 else None
    for cell in sorted(some, key=lambda cell: cell.published.attack == CLEAN):
        attack, eps = cell.published.attack, cell.published.eps
        if attack == CLEAN:
            yield cell, at_hand or _of_clean(clean_accuracy(view, subject.test, show_progress=bench.show_progress))
        elif attack == TRANSFER and setting.ratio != 0:
            yield cell, _of_clean(bench.transferred(subject, view, eps))
        else:
            name = AUTOATTACK if attack == TRANSFER else attack
            one = bench.attacked(subject, setting, view, name, eps)
            at_hand = at_hand or Found(one.clean_accuracy, one.clean_interval, one.count)
            yield cell, Found(one.robust_accuracy, one.interval, one.count, one.unreliable)


def _row(cell: Cell, found: Found, subject: Subject, note: str) -> ReproducedRow:
    row = _blank(cell)
    inside = None if subject.source.stand_in else is_inside(row.published, found.interval)
    return replace(
        row,
        spec=subject.source.spec(subject.paper),
        measured=found.accuracy,
        interval=found.interval,
        inside=inside,
        count=found.count,
        unreliable=found.unreliable,
        note=note,
    )


def _blank(cell: Cell) -> ReproducedRow:
    one = cell.published
    ratio = ratio_text(cell.setting.ratio)
    return ReproducedRow(
        one.dataset, one.model, one.variant, one.ratio, ratio, one.attack, one.eps, round(one.accuracy / 100, 6)
    )


def _notes(source: Source, groups: Mapping[PaperModel, Group], asked_clean: bool, left_clean: bool) -> list[str]:
    """What to know of all numbers of a table; that they are of stand-ins comes first."""
    dtype = _in_16_bit(source)
    said = {
        STAND_IN: source.stand_in,
        "images that are robust on the base were left clean": left_clean,
        "leave_robust_clean has no effect: nothing is transferred in this table": asked_clean and not left_clean,
        f"the models were measured in {dtype}": bool(dtype),
    }
    bases = [f"{paper.dataset} {paper.model}: {paper.note}" for paper in groups if paper.note and not source.stand_in]
    return [*(text for text, holds in said.items() if holds), *_calibration_note(source, groups.values()), *bases]


def _in_16_bit(source: Source) -> str:
    return "" if source.dtype == "float32" else source.dtype


def _calibration_note(source: Source, groups: Iterable[Group]) -> list[str]:
    """Says that `calibrate` replaced the paper's number, which it does not where a variant states its own."""
    forged = [setting for group in groups for setting in group if setting.ratio != 0]
    if source.calibrate is None or all(source.settings.stated_size(setting.variant) for setting in forged):
        return []
    return [f"calibrated on {source.calibrate} images, not on the paper's number"]


def _unmeasured(groups: Iterable[Sequence[Cell]], error: Exception) -> list[tuple[Published, ReproducedRow]]:
    return [(cell.published, replace(_blank(cell), note=str(error))) for some in groups for cell in some]


def _of_clean(found: CleanResult) -> Found:
    return Found(found.accuracy, found.interval, found.count)


def _has_transfer(subject: Subject) -> bool:
    name = subject.paper.dataset, subject.paper.model
    return any(row.attack == TRANSFER and (row.dataset, row.model) == name for row in load_paper())


def _attacks(group: Group) -> Counter[tuple[str, str]]:
    """How often each attack at each eps is run: a transfer table attacks the base only."""
    runs: Counter[tuple[str, str]] = Counter()
    for setting, some in group.items():
        for cell in some:
            attack = cell.published.attack
            if attack != CLEAN and (attack != TRANSFER or setting.ratio == 0):
                runs[AUTOATTACK if attack == TRANSFER else attack, cell.published.eps] += 1
    return runs


def _times(one: Estimate, times: int) -> Estimate:
    low, high = one.interval
    return replace(
        one, count=times * one.count, device_seconds=times * one.device_seconds, interval=(times * low, times * high),
        wall_seconds=times * one.wall_seconds,
        assumptions=(f"each of {times} models costs as much as the base", *one.assumptions),
    )  # fmt: skip


def _table(table: str, source: Source) -> PaperTable:
    source.settings.check(table)
    if table not in source.settings.tables:
        raise InputError(f"{table} is a figure: reproduce_figure measures it, and it has no estimate")
    return source.settings.tables[table]


@contextmanager
def kept_in(run: RunDir | None) -> Iterator[RunDir]:
    """The run directory; a temporary one where nobody asked for one."""
    if run is not None:
        yield run
        return
    if by_torchrun():
        raise InputError("several processes need a run directory that they share (--run)")
    with tempfile.TemporaryDirectory() as folder:
        yield RunDir.open(folder)
