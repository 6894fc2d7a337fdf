"""`lipforge models`: which models there are by name."""

from typing import TYPE_CHECKING, Annotated

from typer import Argument

from lipforge.cli import options
from lipforge.cli.output import printed, say, show_table
from lipforge.records import to_builtins
from lipforge.text import share_text

if TYPE_CHECKING:
    from lipforge.models import Known, Zoo


@options.command()
def models(
    glob: Annotated[
        str, Argument(metavar="GLOB", help="Only names that match, such as 'wrn*'; 'timm:*' lists a zoo.")
    ] = "*",
    json: options.Json = False,
) -> None:
    """List the models that come with lipforge, its architectures, and which zoos are installed.

    [bold]Examples[/]

    lipforge models

    lipforge models 'wrn*'

    lipforge models 'timm:convnext*' --json
    """
    from lipforge.models import known_models, zoos

    found, packages = known_models(glob), zoos() if glob == "*" else []
    records = [{"kind": "model", **to_builtins(one)} for one in found]
    if not printed(json, [*records, *({"kind": "zoo", **to_builtins(zoo)} for zoo in packages)]):
        _show(found, packages)


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
