"""`lipforge data`: which data sets there are, getting one, checking one."""

from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Typer

import lipforge as lf
from lipforge.cli import options
from lipforge.cli.output import printed, results, say, show_table
from lipforge.records import to_builtins

if TYPE_CHECKING:
    from lipforge.data import DataReport

app = Typer(help="List, get and check data sets.", no_args_is_help=True)


@app.command("list")
def list_command(json: options.Json = False) -> None:
    """List the data sets that lipforge knows by name, and the kinds of paths it reads.

    [bold]Example[/]: lipforge data list
    """
    from lipforge.data import cache_folder

    entries = lf.list_data()
    if printed(json, [_record("data", entry) for entry in entries], cache=cache_folder()):
        return
    rows = [
        [
            entry.name,
            " + ".join(f"{count:,} {split}" for split, count in entry.counts.items()),
            str(entry.classes),
            "x".join(map(str, entry.image)),
            "yes" if entry.ready else "no",
        ]
        for entry in entries
        if entry.image is not None
    ]
    columns = ["name", "images", ">classes", "size", "ready"]
    show_table("By name (lipforge data get NAME makes one ready)", columns, rows)
    results.print("\nBy path:")
    for entry in entries:
        if entry.image is None:
            say(f"  {entry.name:12s} {entry.holds}")
    say(f"\ncache: {cache_folder()} (set LIPFORGE_CACHE to move it)")


@app.command("get")
def get_command(
    name: Annotated[str, Argument(help="A name of `lipforge data list`.", show_default=False)],
    root: options.Root = None,
    json: options.Json = False,
) -> None:
    """Bring a data set into the cache: from your files, or from the network. A second call does nothing.

    [bold]Example[/]: lipforge data get cifar10 --root ~/datasets
    """
    from lipforge.data import cache_folder

    entry = lf.get_data(name, root=root)
    if printed(json, _record("data", entry)):
        return
    counts = ", ".join(f"{count:,} {split}" for split, count in entry.counts.items())
    say(f"{entry.name}: {counts} images are in {cache_folder()}")


@app.command("check")
@options.command()
def check_command(
    spec: Annotated[str, Argument(help="A data set, such as cifar10:test or folder:PATH.", show_default=False)],
    folder: options.ImageOptions,
    root: options.Root = None,
    json: options.Json = False,
) -> None:
    """Decode every image and report counts, classes, range, identity, and files that cannot be read.

    Exit code 2 if any file is unreadable.

    [bold]Example[/]: lipforge data check folder:/data/imagenet/val
    """
    report = lf.check_data(spec, root=root, folder=folder.for_data(spec))
    if not printed(json, _record("data_check", report)):
        _show(report)
    if report.unreadable:
        raise Exit(2)


def _record(kind: str, found: object) -> dict[str, Any]:
    return {"kind": kind, **to_builtins(found)}


def _show(report: "DataReport") -> None:
    size = "x".join(map(str, report.image))
    results.print(f"{report.name}: {report.count:,} images of {size}, values in [{report.low:g}, {report.high:g}]")
    names = report.class_names or map(str, range(report.classes))
    rows = [
        [str(number), name, f"{count:,}"]
        for number, (name, count) in enumerate(zip(names, report.histogram, strict=False))
    ]
    shown = rows if len(rows) <= 20 else [*rows[:10], ["...", "...", "..."], *rows[-5:]]
    show_table(f"{report.classes} classes", [">#", "class", ">images"], shown)
    results.print(f"digest {report.digest}")
    for failure in report.unreadable:
        say(f"unreadable: {failure}")
