"""`lipforge analyse`: what forging does to each layer of a model."""

from typing import Annotated

import torch
import typer
from torch import Tensor, nn

from lipforge.analysis import Analysis, Spread
from lipforge.analysis import analyse as analyse_model
from lipforge.analysis.plots import plot_analysis
from lipforge.attacks import Attack, text_form
from lipforge.batching import batches
from lipforge.cli import attacking, options
from lipforge.cli.output import note, print_json, results, table
from lipforge.data import DataSet
from lipforge.forge import forged, load_recipe
from lipforge.models import load_model
from lipforge.progress import progress
from lipforge.runs import record
from lipforge.types import Threat

BATCH_SIZE = 32
RESULT = "analysis"


def analyse(
    model: options.Model,
    recipe: Annotated[str, typer.Option(help="The recipe of `lipforge forge`.")],
    data: options.Data = "cifar10",
    images: Annotated[int, typer.Option(help="Measure on the first so many images.")] = 64,
    spectral: Annotated[int, typer.Option(help="Images whose masks singular values are taken under.")] = 16,
    attack: Annotated[str, typer.Option(help="Makes the adversarial images, from the forged model; or none.")] = "pgd",
    eps: Annotated[str, typer.Option(help="Size of the perturbation.")] = "8/255",
    norm: Annotated[str, typer.Option(help="linf, l2 or l1.")] = "linf",
    seed: Annotated[int, typer.Option(help="Seed of the attack.")] = 0,
    run: Annotated[str | None, typer.Option(help="A run directory to write results/analysis.json to.")] = None,
    plot: Annotated[str | None, typer.Option(help="A folder for plots over depth.")] = None,
    weights: options.Weights = None,
    weights_dir: options.WeightsDir = None,
    no_weights: options.NoWeights = False,
    classes: options.Classes = None,
    root: options.Root = None,
    batch_size: options.BatchSize = BATCH_SIZE,
    device: options.Device = "auto",
    resize: options.Resize = 256,
    crop: options.Crop = 224,
    interpolation: options.Interpolation = "bicubic",
    on_error: options.OnError = "raise",
    workers: options.Workers = None,
    files: options.Files = None,
    json: options.Json = False,
) -> None:
    """Say for every forged site what is suppressed, how much the layer can amplify, and how much it does.

    [bold]Example[/]

    lipforge analyse cifar10-resnet --recipe recipe.json --images 64 --attack pgd --eps 8/255 --run runs/x --plot plots
    """
    chosen = None if attack == "none" else attacking.parse(attack)
    threat = Threat(norm, eps)  # type: ignore[arg-type]  # Threat checks the word itself
    where = options.pick_device(device)
    folder = options.folder_options(resize, crop, interpolation, on_error, workers, files)
    source = options.open_data(data, images, None, root, folder)
    loaded = load_model(model, weights, weights_dir=weights_dir, pretrained=not no_weights, classes=classes).to(where)
    load_recipe(recipe).apply_(loaded)
    result = analyse_model(
        loaded,
        source,
        None if chosen is None else _adversarial(forged(loaded), source, chosen, threat, seed, batch_size, where),
        spectral_images=spectral,
        batch_size=batch_size,
        model_name=model,
        data_name=source.name,
        attack="" if chosen is None else f"{text_form(chosen)} {threat} on the forged model, seed {seed}",
    )
    kept = options.open_run(run)
    paths = [] if kept is None else [kept.write_result(RESULT, result)]
    paths += [] if plot is None else plot_analysis(result, plot)
    if json:
        print_json({**record(result), "wrote": paths})
        return
    _show(result)
    for path in paths:
        results.print(f"wrote {path}", soft_wrap=True)


def _adversarial(
    view: nn.Module, data: DataSet, attack: Attack, threat: Threat, seed: int, batch_size: int, device: torch.device
) -> Tensor:
    """The adversarial twins of all images, on the CPU; what the attack doubts goes to stderr once."""
    made: list[Tensor] = []
    doubts: set[str] = set()
    with progress("attacking", len(data)) as step:
        for batch in batches(data, batch_size):
            assert batch.labels is not None
            ids = torch.arange(batch.first, batch.first + len(batch.images), device=device)
            x, y = batch.images.to(device), batch.labels.to(device)
            result = attack.run(view, x, y, threat=threat, seed=seed, sample_ids=ids)
            made.append(result.images.cpu())
            doubts.update(result.notes)
            step(len(x))
    for doubt in sorted(doubts):
        note(f"the attack: {doubt}")
    return torch.cat(made)


def _show(result: Analysis) -> None:
    attacked = f"; {result.attack}" if result.attack else ""
    slope = max(site.max_slope for site in result.layers)
    title = f"{result.model}: {result.mask}, slope up to {slope:.3g}; {result.images} images of {result.data}{attacked}"
    rows = [
        [site.name, f"{site.bound:.4g}", f"{site.threshold:.4g}", f"{site.jump:.4g}"]
        + [_percent(share) for share in (site.zero_clean, site.suppressed_clean, site.suppressed_adversarial)]
        for site in result.layers
    ]
    _print(title, ["bound", "threshold", "jump", "zero %", "clean %", "adv %"], rows)
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
    _print(title, ["sigma", "active", "forged", "row sums", "masked"], rows)
    results.print(
        "sigma: of the layer. active, forged: the share of it that is left without the inputs that are 0 in the plain "
        "model, and without those that are 0 in the forged one; forging adds the difference. row sums, masked: "
        "Gershgorin's upper bound on sigma, without masks and for the worst image's.\n"
    )
    if result.attack:
        rows = [[site.name, _spread(site.gain_plain), _spread(site.gain_forged)] for site in result.layers]
        _print("gain |out' - out| / |in' - in| from clean to adversarial, mean / worst", ["plain", "forged"], rows)
    _show_network(result)
    for text in result.notes:
        note(text)


def _print(title: str, columns: list[str], rows: list[list[str]]) -> None:
    results.print(table(title, {"site": "left", **dict.fromkeys(columns, "right")}, rows))


def _show_network(result: Analysis) -> None:
    network = result.network
    columns = {"image to logits, mean / worst": "left", "plain": "right", "forged": "right"}
    rows = [
        ["gain, clean to adversarial", _spread(network.gain_plain), _spread(network.gain_forged)],
        ["slope (Jacobian) at clean images", _spread(network.jacobian_plain), _spread(network.jacobian_forged)],
    ]
    results.print(table("", columns, rows))
    if result.product is not None:
        product = result.product
        results.print(
            f"Product of sigma over {product.sites} sites: 10^{product.log10_plain:.2f}; the largest for one image "
            f"10^{product.log10_active:.2f} active, 10^{product.log10_forged:.2f} forged. It does not bound the "
            "network: shortcuts, norms, stem and head are not in it, and masks differ between inputs."
        )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _spread(value: Spread | None) -> str:
    return "-" if value is None else f"{value.mean:.3f} / {value.worst:.3f}"
