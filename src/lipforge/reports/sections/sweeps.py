"""Accuracy over eps, attack by attack, and what transfers between models."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from lipforge.reports.blocks import Block, Figure, Grid, Section
from lipforge.reports.charts import Axis, Lines, Point, Series
from lipforge.reports.parsed import is_base, roles
from lipforge.reports.read import Fields, Run
from lipforge.reports.sections.accuracy import percent_tick
from lipforge.reports.tables import Column, Share, Table
from lipforge.reports.text import eps_text, percent


@dataclass(frozen=True)
class Dose:
    """What one attack left at one eps."""

    label: str
    attack: str
    eps: float
    count: int
    share: Share


def sweeps(run: Run) -> Section | None:
    """A panel per attack: base and forged over eps. Transfer is a table below."""
    doses = [dose for sweep in run.parsed("sweep", parse_sweep) for dose in sweep]
    blocks: list[Block] = [_figure(doses)] if doses else []
    if transfers := [row for rows in run.parsed("transfer", parse_transfer) for row in rows]:
        columns = (Column("made for"), Column("tried on"), Column("attack"), Column("threat"), Column("n", "count"),
                   Column("robust", "share"))  # fmt: skip
        blocks.append(Grid(Table("transfer", "Transfer: images made for one model, tried on another", columns,
                                 tuple(transfers))))  # fmt: skip
    lead = (
        "Without masked gradients accuracy falls to 0 as eps grows, iterative attacks leave less than one-step ones, "
        "and images made for another model leave more than those made for the model itself."
    )
    return Section("sweep", "Accuracy over eps", lead, tuple(blocks)) if blocks else None


def _figure(doses: Sequence[Dose]) -> Figure:
    colours = roles(sorted({dose.label for dose in doses}, key=lambda label: (not is_base(label), label)))
    attacks: dict[str, dict[str, list[Dose]]] = defaultdict(lambda: defaultdict(list))
    for dose in sorted(doses, key=lambda dose: (not is_base(dose.label), dose.label, dose.eps)):
        attacks[dose.attack][dose.label].append(dose)
    charts = tuple(_panel(attack, by_label, colours) for attack, by_label in attacks.items())
    columns = (Column("attack"), Column("classifier"), Column("eps"), Column("n", "count"), Column("robust", "share"))
    rows = tuple((d.attack, d.label, eps_text(d.eps), d.count, d.share)
                 for by_label in attacks.values() for same in by_label.values() for d in same)  # fmt: skip
    table = Table("sweep", "Accuracy over eps", columns, rows)
    return Figure("Accuracy over eps, one panel per attack, with 95 % intervals.", charts, table)


def _panel(attack: str, by_label: dict[str, list[Dose]], colours: dict[str, str]) -> Lines:
    eps = sorted({dose.eps for doses in by_label.values() for dose in doses})
    place = {value: float(number) for number, value in enumerate(eps)}
    series = tuple(
        Series(
            label,
            colours[label],
            tuple(Point(place[d.eps], d.share.value, _tip(d), d.share.interval) for d in doses),
        )
        for label, doses in by_label.items()
    )
    ends = "; ".join(
        f"{label} from {percent(doses[0].share.value)} % at {eps_text(doses[0].eps)} "
        f"to {percent(doses[-1].share.value)} % at {eps_text(doses[-1].eps)}"
        for label, doses in by_label.items()
    )
    marks = tuple((place[value], eps_text(value)) for value in eps)
    x = Axis("eps, evenly spaced", (-0.4, len(eps) - 0.6), marks=marks)
    return Lines(f"{attack}: {ends}.", x, Axis("robust accuracy, %", (0.0, 1.0), percent_tick), series, 250.0, attack)


def _tip(dose: Dose) -> str:
    inner = ""
    if dose.share.interval:
        inner = f" [{percent(dose.share.interval[0])}, {percent(dose.share.interval[1])}]"
    what = f"{dose.label}, {dose.attack}, eps {eps_text(dose.eps)}"
    return f"{what}: {percent(dose.share.value)} %{inner}, n = {dose.count:,}"


def parse_sweep(fields: Fields) -> list[Dose]:
    """A sweep from its JSON."""
    return [
        Dose(
            label=point.text("label", fields.text("label", "model")),
            attack=point.text("attack"),
            eps=point.number("eps"),
            count=point.whole("count"),
            share=Share(point.number("robust_accuracy"), point.interval("interval")),
        )
        for point in fields.each("points")
    ]


def parse_transfer(fields: Fields) -> list[tuple[str, str, str, str, int, Share]]:
    """A transfer from its JSON."""
    return [(
        fields.text("source"), fields.text("target"), fields.text("attack"), fields.text("threat"),
        fields.whole("count"), Share(fields.number("robust_accuracy"), fields.interval("interval")),
    )]  # fmt: skip
