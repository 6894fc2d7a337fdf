"""`lipforge bracket`: certified and attacked accuracy, with the truth in between."""

from typing import Annotated, Any

from typer import Option

import lipforge as lf
from lipforge.cli import options
from lipforge.cli.output import note, printed, say, say_wrote, show_table
from lipforge.text import duration, share_text


@options.command(limit=100, data="cifar10:test")
def bracket(
    models: options.ModelOptions,
    data: options.DataOptions,
    threats: options.ThreatOptions,
    recipe: options.RecipeOptions,
    keep: options.RunOptions,
    attack: Annotated[
        str, Option(help="What gives the upper bound: fast, autoattack, pgd:steps=50 and others.")
    ] = "fast",
    method: Annotated[str, Option(help="crown, or crown-ibp: quicker by far, and looser by far.")] = "crown",
    json: options.Json = False,
) -> None:
    """Prove images robust by deterministic bounds, and attack the same ones: the truth is in between.

    The bounds (IBP and CROWN) are about the model itself, forged functions and their jumps included. For large networks
    they say little; `lipforge certify` is about a smoothed classifier instead. With a recipe the base and the changed
    model are compared.

    [bold]Examples[/]

    lipforge bracket cifar10-resnet --method crown-ibp --eps 0.01/255 --limit 10

    lipforge bracket my_model.py:build --recipe recipe.json --eps 2/255 --limit 1000 --run runs/bracket
    """
    from lipforge.certification import comparison_name

    threat, chosen = threats.threat, lf.parse_attack(attack)
    with options.session(models, data) as (rank, images, model, _):
        kept = keep.settings()
        settings: dict[str, Any] = {"attack": chosen, "method": method, "model_name": models.model, **kept}
        found = [
            lf.bracket(view, images, threat, label=label, **settings) for label, view in recipe.views(model).items()
        ]
    if rank.is_first:
        compared = [lf.compare_brackets(found[0], other) for other in found[1:]]
        for pair in compared if kept["run"] is not None else ():
            kept["run"].write_result(comparison_name(pair), pair)
        _report(found, compared, keep, json)


def _report(
    found: "list[lf.BracketResult]", compared: "list[lf.BracketComparison]", keep: options.RunOptions, json: bool
) -> None:
    from lipforge.certification import bracket_name, comparison_name
    from lipforge.results import UNKNOWN

    base = found[0]
    if printed(json, [*found, *compared]):
        return
    for one in found:
        for text in one.notes:
            note(f"{one.label}: {text}")
    about = f"{base.threat}, {base.method}, {base.data}, n = {base.count}, seed {base.seed}"
    title = f"{base.model}: % certified and robust, {about}"
    columns = ["view", ">clean", ">certified", f">{base.attack}", ">unknown", ">bounds"]
    show_table(title, columns, [_row(one, one.outcome.count(UNKNOWN)) for one in found])
    say("certified <= truth <= attacked on these images; the 95 % intervals are about the choice of images")
    for pair in compared:
        say(str(pair))
    names = [bracket_name(one.label, one.attack, one.threat, one.seed, one.method) for one in found]
    say_wrote(keep.paths(*names, *(comparison_name(pair) for pair in compared)))


def _row(one: "lf.BracketResult", unknown: int) -> list[str]:
    clean = share_text(one.clean_accuracy, one.clean_interval)
    certified = f"{share_text(one.certified_accuracy, one.certified_interval)} {sum(one.certified)}/{one.count}"
    attacked = f"{share_text(one.robust_accuracy, one.interval)} {sum(one.robust)}/{one.count}"
    return [one.label, clean, certified, attacked, str(unknown), f"{duration(one.seconds_per_image)} per image"]
