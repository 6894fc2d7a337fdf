"""`lipforge analyse`: what forging does to each layer of a model."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

import lipforge as lf
from lipforge.cli import options
from lipforge.cli.output import note, printed, results, say_wrote, show_table
from lipforge.cli.processes import refuse_processes

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lipforge.results import Note, Spread


@options.command(
    recipe=(..., Option(help="The recipe of `lipforge forge`.")),
    limit=(64, Option("--images", help="Measure on this many images.")),
)
def analyse(
    models: options.ModelOptions,
    data: options.DataOptions,
    threats: options.ThreatOptions,
    recipe: options.RecipeOptions,
    keep: options.RunOptions,
    spectral: Annotated[int, Option(help="Images whose masks singular values are taken under.")] = 16,
    attack: options.AttackText = "pgd",
    plot: Annotated[str | None, Option(help="A folder for plots over depth.")] = None,
    batch_size: options.BatchSize = 32,
    json: options.Json = False,
) -> None:
    """Say for every forged site what is suppressed, how much the layer can amplify, and how much it does.

    The adversarial images are made on the forged model; --attack none makes none.

    [bold]Example[/]

    lipforge analyse cifar10-resnet --recipe recipe.json --images 64 --attack pgd --eps 8/255 --run runs/x --plot plots
    """
    from lipforge.attacks import text_form
    from lipforge.results import merge_notes

    refuse_processes(keep.processes, "analyse")
    chosen, threat = None if attack == "none" else lf.parse_attack(attack), threats.threat
    with options.session(models, data) as (rank, images, model, _):
        recipe.apply_(model, several=True)
        options.require_forged(model, str(recipe.recipe))
        seen: list[Note] = []
        found = {}
        for ratio in recipe.in_turn(model):
            found[f"analysis__{ratio.replace('^', '')}" if ratio else "analysis"] = lf.analyse(
                model,
                images,
                None if chosen is None else _attacker(lf.forged(model), chosen, threat, keep.seed, seen),
                spectral_images=spectral,
                batch_size=batch_size,
                model_name=f"{models.model} {ratio}".strip(),
                data_name=images.name,
                attack="" if chosen is None else f"{text_form(chosen)} {threat} on the forged model, seed {keep.seed}",
            )
    if rank.is_first:
        _report(found, merge_notes(seen, len(images) * len(found)), keep, plot, json)


def _report(
    found: "dict[str, lf.Analysis]", seen: "tuple[Note, ...]", keep: options.RunOptions, plot: str | None, json: bool
) -> None:
    from lipforge.analysis.plots import plot_analysis
    from lipforge.tracking import track_result

    kept, paths = keep.open(), []
    for name, result in found.items():
        track_result(name, result)
        paths += [] if kept is None else [kept.write_result(name, result)]
        folder = plot if plot is None or len(found) == 1 else str(Path(plot) / name)
        paths += [] if folder is None else plot_analysis(result, folder)
    for text in seen:
        note(f"the attack: {text}")
    shown = list(found.values())
    if not printed(json, shown if len(shown) > 1 else shown[0], wrote=paths):
        for result in shown:
            _show(result)
        say_wrote(paths)


def _attacker(
    view: "nn.Module", attack: "lf.Attack", threat: "lf.Threat", seed: int, seen: "list[Note]"
) -> "Callable[[Tensor, Tensor], Tensor]":
    """What makes adversarial images of one batch after another; the attack's notes are added to `seen`."""
    positions = itertools.count()

    def attacked(x: "Tensor", y: "Tensor") -> "Tensor":
        ids = y.new_tensor([next(positions) for _ in x])
        result = attack.run(view, x, y, threat=threat, seed=seed, sample_ids=ids)
        seen.extend(result.notes)
        return result.images

    return attacked


def _show(result: "lf.Analysis") -> None:
    attacked = f"; {result.attack}" if result.attack else ""
    slope = max(site.max_slope for site in result.layers)
    title = f"{result.model}: {result.mask}, slope up to {slope:.3g}; {result.images} images of {result.data}{attacked}"
    rows = [
        [site.name, f"{site.bound:.4g}", f"{site.threshold:.4g}", f"{site.jump:.4g}"]
        + [_number(part, 100, ".1f") for part in (site.zero_clean, site.suppressed_clean, site.suppressed_adversarial)]
        for site in result.layers
    ]
    show_table(title, ["site", ">bound", ">threshold", ">jump", ">zero %", ">clean %", ">adv %"], rows)
    results.print(
        "zero: activations that are 0 before the mask. clean, adv: others that the mask changes, on clean and on "
        "adversarial images.\n"
    )
    rows = [
        [
            site.name,
            _number(site.sigma),
            _spread(site.ratio_active),
            _spread(site.ratio_forged),
            _number(site.gershgorin),
            _number(None if site.gershgorin_forged is None else site.gershgorin_forged.worst),
        ]
        for site in result.layers
    ]
    title = f"largest singular values, mean / worst of {result.spectral_images} images"
    show_table(title, ["site", ">sigma", ">active", ">forged", ">row sums", ">masked"], rows)
    results.print(
        "sigma: of the layer. active, forged: the share of it that is left without the inputs that are 0 in the plain "
        "model, and without those that are 0 in the forged one; forging adds the difference. row sums, masked: "
        "Gershgorin's upper bound on sigma, without masks and for the worst image's.\n"
    )
    if result.attack:
        rows = [[site.name, _spread(site.gain_plain), _spread(site.gain_forged)] for site in result.layers]
        title = "gain |out' - out| / |in' - in| from clean to adversarial, mean / worst"
        show_table(title, ["site", ">plain", ">forged"], rows)
    _show_network(result)
    for text in result.notes:
        note(text)


def _show_network(result: "lf.Analysis") -> None:
    network = result.network
    rows = [
        ["gain, clean to adversarial", _spread(network.gain_plain), _spread(network.gain_forged)],
        ["slope (Jacobian) at clean images", _spread(network.jacobian_plain), _spread(network.jacobian_forged)],
    ]
    show_table("", ["image to logits, mean / worst", ">plain", ">forged"], rows)
    if result.product is not None:
        product = result.product
        results.print(
            f"Product of sigma over {product.sites} sites: 10^{product.log10_plain:.2f}; the largest for one image "
            f"10^{product.log10_active:.2f} active, 10^{product.log10_forged:.2f} forged. It does not bound the "
            "network: shortcuts, norms, stem and head are not in it, and masks differ between inputs."
        )


def _number(value: float | None, scale: int = 1, form: str = ".3g") -> str:
    return "-" if value is None else f"{scale * value:{form}}"


def _spread(value: "Spread | None") -> str:
    return "-" if value is None else f"{value.mean:.3f} / {value.worst:.3f}"
