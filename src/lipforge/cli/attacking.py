"""Options of the commands that attack, spelled once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast

import typer
from torch import nn

from lipforge.attacks import Attack, autoattack, parse_attack
from lipforge.cli.output import note, results
from lipforge.errors import InputError
from lipforge.forge import forged, load_recipe, plain, set_ratio_
from lipforge.types import Norm, Threat, parse_number

Recipe = Annotated[str | None, typer.Option(help="A recipe of `lipforge forge`.")]
Ratio = Annotated[str | None, typer.Option(help="Another ratio than the recipe's.")]
NormName = Annotated[str, typer.Option("--norm", help="linf, l2 or l1.")]
Run = Annotated[str | None, typer.Option(help="A run directory: keeps every shard; the same command resumes.")]
AttackSeed = Annotated[int, typer.Option(help="Seed of the attacks' random starts.")]
ShardSize = Annotated[int, typer.Option(help="Images that are attacked together, and kept together.")]


EPS = "8/255"
"""The default of --eps."""


def parse(text: str) -> Attack:
    """The attack that `text` names; plain `autoattack` is the fast version."""
    return autoattack("fast") if text.strip() == "autoattack" else parse_attack(text)


def threat(norm: str, eps: str) -> Threat:
    """The threat of --norm and --eps, with a note where --eps was left at what suits linf only."""
    made = Threat(cast(Norm, norm), eps)
    if made.norm != "linf" and eps == EPS:
        note(f"eps {EPS} is usual in linf and tiny in {made.norm}; give --eps (usual are 0.5 in l2 and 12 in l1)")
    return made


def threats(norm: str, eps: str) -> list[Threat]:
    """The threats of a list such as "2/255,4/255"; each once."""
    made = [threat(norm, part.strip()) for part in eps.split(",")]
    values = [threat.eps for threat in made]
    if len(set(values)) < len(values):
        raise InputError(f"--eps must list different radii, got {eps}")
    return made


def views(model: nn.Module, recipe: str | None, ratio: str | None = None) -> dict[str, nn.Module]:
    """The model alone, or with a recipe its plain and its forged view."""
    if recipe is None:
        if ratio is not None:
            raise InputError("--ratio changes the ratio of a recipe; give one with --recipe")
        return {"base": model}
    load_recipe(recipe).apply_(model)
    if ratio is not None:
        set_ratio_(model, parse_number(ratio, name="ratio"))
    return {"base": plain(model), "forged": forged(model)}


def say_wrote(run: str | None, names: Sequence[str]) -> None:
    """Where results were written."""
    for name in names if run is not None else ():
        results.print(f"wrote {Path(cast(str, run)) / 'results' / name}.json", soft_wrap=True)
