"""`lipforge models`: which models there are by name."""

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from lipforge.cli import options
from lipforge.cli.output import printed, say, show_table
from lipforge.errors import InputError
from lipforge.records import to_builtins
from lipforge.text import percent, share_text

if TYPE_CHECKING:
    from lipforge.models import Known, Zoo


@options.command()
def models(
    glob: Annotated[
        str, Argument(metavar="GLOB", help="Only names that match, such as 'wrn*'; 'timm:*' lists a zoo.")
    ] = "*",
    leaderboard: Annotated[
        str | None,
        Option(
            help="Show a leaderboard of RobustBench instead, such as cifar10/Linf, with its installed package's table."
        ),
    ] = None,
    model_info: Annotated[
        list[str] | None,
        Option(help="With --leaderboard: add the entries of this folder in the form of model_info; repeatable."),
    ] = None,
    json: options.Json = False,
) -> None:
    """List the models that come with lipforge, its architectures, and which zoos are installed.

    [bold]Examples[/]

    lipforge models

    lipforge models 'wrn*'

    lipforge models 'timm:convnext*' --json

    lipforge models --leaderboard cifar10/Linf --model-info infos
    """
    from lipforge.models import known_models, zoos

    if leaderboard is not None:
        _show_leaderboard(leaderboard, glob, model_info or [], json)
        return
    if model_info:
        raise InputError("--model-info adds entries to a leaderboard; name it with --leaderboard cifar10/Linf")
    found, packages = known_models(glob), zoos() if glob == "*" else []
    records = [{"kind": "model", **to_builtins(one)} for one in found]
    if not printed(json, [*records, *({"kind": "zoo", **to_builtins(zoo)} for zoo in packages)]):
        _show(found, packages)


def _show_leaderboard(board: str, glob: str, folders: list[str], json: bool) -> None:
    import lipforge as lf

    dataset, _, threat = board.partition("/")
    entries = lf.leaderboard_of(dataset, threat, folders)
    ranks = {entry.model: place for place, entry in enumerate((one for one in entries if one.ranked), 1)}
    shown = [entry for entry in entries if fnmatchcase(entry.model.lower(), glob.lower())]
    if not shown:
        raise InputError(f"no model of the leaderboard {board} matches {glob!r}; leave out GLOB to see all")
    records = [{"kind": "leaderboard_entry", "rank": ranks.get(one.model), **to_builtins(one)} for one in shown]
    if printed(json, records):
        return
    rows = []
    for one in shown:
        clean, robust = (
            "" if share is None else percent(share, 2) for share in (one.clean_accuracy, one.robust_accuracy)
        )
        rows.append([str(ranks.get(one.model, "-")), one.model, clean, robust, one.architecture, one.source])
    show_table(f"RobustBench, {board}: % correct", [">#", "model", ">clean", ">robust", "architecture", "from"], rows)
    for one in shown:
        if not one.ranked:
            say(f"{one.model} is not ranked, it has no autoattack_acc: {one.footnote}")


def _show(found: "list[Known]", packages: "list[Zoo]") -> None:
    bundled = [one for one in found if one.source == "bundled"]
    if bundled:
        columns = ["bundled", ">parameters", ">MB", ">clean %", ">robust %", "measured with"]
        show_table("", columns, map(_row, bundled))
    others = [one.name for one in found if one.source != "bundled"]
    if others:
        listed = found[-1].source == "architecture"
        say("architectures: " + ", ".join(others) if listed else "\n".join(others))
    for zoo in packages:
        say(f"{zoo.name}: {f'version {zoo.version}' if zoo.version else f'not installed; {zoo.install}'}")


def _row(one: "Known") -> list[str]:
    size = "" if one.bytes is None else f"{one.bytes / 1e6:.1f}"
    counts = "" if one.parameters is None else f"{one.parameters:,}"
    shares = (_share(share, one.images) for share in (one.clean_accuracy, one.robust_accuracy))
    return [one.name, counts, size, *shares, f"{one.data}, n = {one.images}, {one.threat}, {one.attack}"]


def _share(share: float | None, count: int | None) -> str:
    from lipforge.statistics import clopper_pearson

    return "" if share is None or not count else share_text(share, clopper_pearson(round(share * count), count))
