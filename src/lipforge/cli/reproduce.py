"""`lipforge reproduce`: a table or figure of the paper, measured beside what is published."""

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

import lipforge as lf
from lipforge.cli import options
from lipforge.cli.evaluate import Dtype
from lipforge.cli.output import note, printed, say, say_wrote, show_table
from lipforge.errors import InputError
from lipforge.ranks import process_group
from lipforge.text import duration, percent
from lipforge.types import parse_number

if TYPE_CHECKING:
    from lipforge.results import Analysis, CertifyResult, Estimate


@options.command()
def reproduce(
    keep: options.RunOptions,
    table: Annotated[
        str | None,
        Argument(metavar="TABLE", help="1a, 1b, 2a ... 11, certified, pruned or eigenvalues.", show_default=False),
    ] = None,
    row: Annotated[str, Option(help="Only models, or models with their ratio, that match this glob.")] = "*",
    limit: Annotated[int | None, Option(help="Use only the first N test images.")] = None,
    calibrate: Annotated[int | None, Option(help="Calibrate on N images instead of the paper's number.")] = None,
    weights_dir: Annotated[str | None, Option(help="A folder of checkpoints to search before any download.")] = None,
    imagenet: Annotated[str | None, Option(help="The folder that holds ImageNet's train/ and val/.")] = None,
    root: options.Root = None,
    ratio: Annotated[str | None, Option(help="The ratios to try where the paper states none; 2^-8,2^-7,2^-6.")] = None,
    frequency: Annotated[str | None, Option(help='Frequencies for "+ Weight", such as 0.9,0.95.')] = None,
    leave_robust_clean: Annotated[
        bool, Option("--leave-robust-clean", help="Table 9: images that are robust on the base stay clean.")
    ] = False,
    force: Annotated[
        bool, Option("--force", help="Go on although a base's clean accuracy cannot be RobustBench's.")
    ] = False,
    stand_in: Annotated[
        bool, Option("--stand-in", help="Bundled models, 4 images (or --limit) and short attacks: the layout alone.")
    ] = False,
    estimate: Annotated[bool, Option("--estimate", help="Only say what it would cost, from a probe.")] = False,
    devices: Annotated[int, Option(help="With --estimate: share the cost among this many devices.")] = 1,
    probe: Annotated[int, Option(help="With --estimate: attack this many images.")] = 8,
    dtype: Dtype = "float32",
    plot: Annotated[str | None, Option(help="Figures: a folder for plots, as SVG and PNG.")] = None,
    batch_size: options.BatchSize = 100,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Measure a table or figure of the paper beside its published numbers; without TABLE, list them.

    A checkpoint or data set that is missing is named with where it goes, and the rest is measured. One --run can hold
    all tables: what they have in common is measured once.

    [bold]Examples[/]

    lipforge reproduce

    lipforge reproduce 1a --row RST-AWP --weights-dir checkpoints --run runs/paper

    lipforge reproduce 6 --imagenet /data/imagenet --estimate

    lipforge reproduce 4 --stand-in

    torchrun --nproc-per-node 8 -m -- lipforge reproduce 9a --weights-dir checkpoints --run runs/paper
    """
    if table is None:
        _list_tables(json)
        return
    from lipforge.paper import load_settings
    from lipforge.reproduction import Source, estimate_table, reproduce_figure

    load_settings().check(table)
    ratios, frequencies = _numbers(ratio, "ratio"), _numbers(frequency, "frequency")
    is_figure = table in load_settings().figures
    _check(is_figure, estimate, plot, bool(ratio or frequency or leave_robust_clean))
    chosen = options.pick_device(device)
    source = Source(weights_dir, imagenet, root, limit, calibrate, stand_in, chosen, dtype)
    with process_group(chosen) as rank:
        if estimate:
            if rank.is_first:
                found, lacking = estimate_table(
                    table, source, row=row, ratios=ratios, frequencies=frequencies, seed=keep.seed,
                    batch_size=batch_size, probe=probe, devices=devices,
                )  # fmt: skip
                _show_estimates(found, lacking, json)
            return
        if is_figure:
            results, notes = reproduce_figure(table, source, row=row, **keep.settings(), force=force)
            if rank.is_first:
                _show_figure(table, results, notes, plot, json)
            return
        result = lf.reproduce(
            table, source, row=row, ratios=ratios, frequencies=frequencies, force=force, batch_size=batch_size,
            leave_robust_clean=leave_robust_clean, **keep.settings(),
        )  # fmt: skip
    if rank.is_first:
        _show(result, keep, json)


def _check(is_figure: bool, estimate: bool, plot: str | None, choices: bool) -> None:
    """Raise if an option is for figures and this is a table, or the reverse."""
    if is_figure and estimate:
        raise InputError("--estimate is for tables; `lipforge certify --estimate` says what certified curves cost")
    if is_figure and choices:
        raise InputError("--ratio, --frequency and --leave-robust-clean are for tables; figures are at 2^-7")
    if plot is not None and not is_figure:
        raise InputError("--plot draws figures: certified, pruned and eigenvalues; `lipforge report` shows tables")


def _numbers(text: str | None, name: str) -> list[float]:
    return [] if text is None else [parse_number(part.strip(), name=name) for part in text.split(",")]


def _list_tables(json: bool) -> None:
    from lipforge.paper import load_paper, load_settings

    settings = load_settings()
    rows = {name: [row for row in load_paper() if row.table == name] for name in settings.tables}
    models = {name: list(dict.fromkeys(row.model for row in found)) for name, found in rows.items()}
    models |= {name: list(figure.models) for name, figure in settings.figures.items()}
    titles = {name: one.title for name, one in settings.tables.items()}
    titles |= {name: one.title for name, one in settings.figures.items()}
    listed = [{"kind": "table", "table": name, "title": titles[name], "models": models[name]} for name in titles]
    if printed(json, listed):
        return
    shown = [[name, titles[name], ", ".join(models[name]), str(len(rows.get(name, [])) or "-")] for name in titles]
    show_table("tables and figures of the paper", ["table", "what it shows", "models", ">numbers"], shown)


def _show(result: "lf.Reproduction", keep: options.RunOptions, json: bool) -> None:
    paths = keep.paths(result.name)
    for text in result.notes:
        note(text)
    for text in dict.fromkeys(f"{row.dataset} {row.model}: {row.note}" for row in result.missing):
        note(text, word="missing")
    if printed(json, result, wrote=paths):
        return
    rows = [
        [row.model, row.name, row.attack, row.eps if row.eps != "0" else "", percent(row.published, 2),
         row.measured_text, str(row.count or "-"), row.mark]
        for row in result.rows
    ]  # fmt: skip
    columns = ["model", "what", "attack", ">eps", ">published", ">measured", ">n", "published is"]
    about = " (stand-in)" if result.stand_in else ""
    title = f"table {result.table}{about}: {result.title}; % correct [exact 95 % interval], seed {result.seed}"
    show_table(title, columns, rows)
    for text in dict.fromkeys(f"{row.model} {row.name}: {row.note}" for row in result.rows if row.note and row.count):
        say(text)
    if result.stand_in:
        say(result.notes[0])
    elif len(result.missing) == len(result.rows):
        say("nothing was measured: the lines above say what is missing")
    else:
        measured = len(result.rows) - len(result.missing)
        say(f"published outside the interval: {len(result.outside)} of {measured} measured, {len(result.rows)} in all")
    say_wrote(paths)


def _show_estimates(found: "list[Estimate]", lacking: list[str], json: bool) -> None:
    total = sum(one.device_seconds for one in found)
    for text in lacking:
        note(text, word="missing")
    if printed(json, found, device_seconds=total, missing=lacking):
        return
    rows = [
        [one.label, one.attack, one.threat, str(one.count), duration(one.device_seconds),
         " .. ".join(map(duration, one.interval)), duration(one.wall_seconds)]
        for one in found
    ]  # fmt: skip
    devices = found[0].devices if found else 1
    columns = ["model", "attack", "threat", ">images", ">device time", ">95 %", f">on {devices}"]
    show_table("attacks; images are those of all ratios together", columns, rows)
    say(f"in all about {duration(total)} of one device like this; calibration and clean accuracies are left out")


def _show_figure(
    name: str, found: "list[CertifyResult] | list[Analysis]", notes: list[str], plot: str | None, json: bool
) -> None:
    from lipforge.reproduction.figures import figure_table, plot_figure

    for text in notes:
        note(text)
    paths = [] if plot is None else plot_figure(name, found, plot)
    if not printed(json, list(found), wrote=[str(path) for path in paths]):
        show_table(*figure_table(name, found))
        say_wrote(paths)
