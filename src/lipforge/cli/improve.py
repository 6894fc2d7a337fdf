"""`lipforge improve`: find a post-hoc change with a significant gain in robust accuracy."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

import lipforge as lf
from lipforge.cli import options
from lipforge.cli.output import check_out, note, printed, say, say_wrote, show_table
from lipforge.errors import InputError
from lipforge.text import points_text, share_text
from lipforge.types import Threat, parse_number

if TYPE_CHECKING:
    from lipforge.results import CandidateScore


@options.command(data="cifar10:train", limit=None)
def improve(
    models: options.ModelOptions,
    data: options.DataOptions,
    threats: options.ThreatOptions,
    keep: options.RunOptions,
    calibrate: Annotated[int, Option(help="Images that parts are fitted on.")] = 5000,
    validate: Annotated[int, Option(help="Other images, on which the choice is made.")] = 1000,
    max_cost: Annotated[int, Option(help="Forward passes per image that the changed model may take.")] = 6,
    parts: Annotated[
        str,
        Option(
            help="What to try: tta (test-time augmentation), head (last layer refitted), affine (scale and shift per "
            "channel; slow to fit), forge."
        ),
    ] = "tta,head,forge",
    tta: Annotated[
        list[str] | None,
        Option(
            help='Transforms to try: mirror, shifts, diagonals, "mirror x shifts", "mirror x diagonals", or shifts by '
            'more than one pixel, "diagonals by 2"; repeatable.'
        ),
    ] = None,
    min_clean: Annotated[
        float | None, Option(help="The lowest clean accuracy on validation images, in percent.")
    ] = None,
    ratio: Annotated[str, Option(help="The ratio of forged functions.")] = "2^-7",
    out: Annotated[
        str | None, Option(help="Write the recipe of the choice here; with --run, into it by default.")
    ] = None,
    shard_size: options.ShardSize = 100,
    json: options.Json = False,
) -> None:
    """Try cheap changes of a trained model on validation images; keep one if its robust gain is significant.

    Use training images; `lipforge audit` with the recipe then judges the choice on test images.

    [bold]Examples[/]

    lipforge improve cifar10-resnet --eps 8/255 --run runs/improve --out better.json

    lipforge improve cifar10-resnet --eps 8/255 --max-cost 2 --parts tta,head --min-clean 68

    lipforge audit cifar10-resnet --recipe better.json --data cifar10:test --eps 8/255
    """
    from lipforge.runs.identity import threat_slug

    if out is not None:
        check_out(out)
    if min_clean is not None and not 0 <= min_clean <= 100:
        raise InputError(f"min-clean is in percent, from 0 to 100, got {min_clean:g}")
    if min_clean is not None and 0 < min_clean <= 1:
        raise InputError(
            f"min-clean is in percent, got {min_clean:g}; for a share of {min_clean:g} give {100 * min_clean:g}"
        )
    if out is None and keep.run:
        out = str(Path(keep.run) / "recipe.json")
    threat = threats.threat
    with options.session(models, data) as (rank, images, model, _):
        found = lf.improve(
            model,
            images,
            threat,
            calibrate=calibrate,
            validate=validate,
            max_cost=max_cost,
            parts=[part.strip() for part in parts.split(",")],
            tta=tta,
            min_clean=None if min_clean is None else min_clean / 100,
            ratio=parse_number(ratio, name="ratio"),
            name=models.model,
            shard_size=shard_size,
            **keep.settings(),
        )
        if not rank.is_first:
            return
        if out is not None and found.recipe is not None:
            found.recipe.save(out)
    written = [*([out] if out and found.recipe else []), *keep.paths(f"improve__{threat_slug(threat)}")]
    _report(models.model, found, written, _audit_command(models, keep, threat, out or "RECIPE"), json)
    if found.recipe is not None and out is None and not json:
        note("no recipe was written: --out says where to")
    if found.recipe is None:
        note(f"no recipe was written: the answer is nothing, so there is none to apply or to audit{_set_aside(out)}")


def _audit_command(models: options.ModelOptions, keep: options.RunOptions, threat: Threat, recipe: str) -> str:
    """The audit of the choice, with all options that give the same model and threat; the images are for the user."""
    named = {
        "weights": models.weights, "weights-dir": models.weights_dir, "classes": models.classes,
        "device": None if models.device == "auto" else models.device, "recipe": recipe, "norm": threat.norm,
        "eps": str(threat).split()[1], "run": keep.run,
    }  # fmt: skip
    words = [word for name, value in named.items() if value is not None for word in (f"--{name}", str(value))]
    return shlex.join(["lipforge", "audit", models.model, *(["--no-weights"] if models.no_weights else []), *words])


def _set_aside(out: str | None) -> str:
    """Rename a recipe that an earlier call left at `out`, so that nobody takes it for the answer of this one."""
    if out is None or not Path(out).exists():
        return ""
    Path(out).replace(f"{out}.old")
    return f". {out} of an earlier call is now {out}.old"


def _report(model: str, found: "lf.ImproveResult", written: list[str], audit: str, json: bool) -> None:
    if printed(json, found.record, recipe=found.recipe and found.recipe.to_dict()):
        return
    about = f"{found.attack} {found.threat}, then restarts (with masks: BPDA, the base's gradients); {found.data}"
    columns = ["candidate", ">passes", ">fitting", ">clean", ">robust", "robust change", "clean change", ">p"]
    show_table(f"{model}: {about}, n = {found.count}, seed {found.seed}", columns, map(_row, found.candidates))
    say(found.reason)
    for text in found.notes:
        note(text)
    say_wrote(written)
    if found.recipe is not None:
        say(f"next, with --data and other options for test images: {audit}")


def _row(score: "CandidateScore") -> list[str]:
    robust = f"{share_text(score.robust_accuracy, score.interval)} {score.robust_count}/{score.count}"
    robust += " unreliable" if score.unreliable else ""
    shown = [score.label, str(score.cost), f"{score.preparation:.0f} s" if score.preparation else ""]
    shown += [share_text(score.clean_accuracy, score.clean_interval), robust]
    if score.robust_change is None or score.clean_change is None:
        return [*shown, "", "", ""]
    change, clean = score.robust_change, score.clean_change
    stopped = f", clearly worse after {score.count}" if score.status == "stopped" else ""
    counted = f"{points_text(change.difference, change.interval)} +{change.gained} -{change.lost}{stopped}"
    return [*shown, counted, points_text(clean.difference, clean.interval), f"{score.p_value:.2g}"]
