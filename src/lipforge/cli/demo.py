"""`lipforge demo`: two changes of the bundled robust model on real images, an audit of each, and the report."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from typer import Option

import lipforge as lf
from lipforge.cli import options
from lipforge.cli.output import note, notes, printed, say, show_table
from lipforge.cli.processes import cores, in_processes
from lipforge.errors import DataError, InputError
from lipforge.ranks import is_helper
from lipforge.text import ratio_text, share_text
from lipforge.types import Threat

if TYPE_CHECKING:
    from torch import nn

    from lipforge.data import DataSet
    from lipforge.results import DemoResult

THREAT = Threat("linf", "8/255")
RATIO = 2**-7
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
STEPS = 7
SHARD, MOST_PROCESSES = 20, 4
EXAMPLE = "{} with its mirror image (an example, picked on images that include these)"


@dataclass(frozen=True)
class Sizes:
    """How many images each step takes: to calibrate, to choose a change, to attack the forged model, to judge the
    change, and to look inside. All but the first are test images; those that choose are not those that judge."""

    calibration: int = 5000
    validation: int = 20
    test: int = 20
    judged: int = 120
    analysed: int = 32


SMALL, FULL = Sizes(), Sizes(validation=1000, test=1000, judged=2000, analysed=128)


@options.command()
def demo(
    model: Annotated[
        str, Option(help="A CIFAR-10 classifier, by any name that `lipforge sites` takes.")
    ] = "cifar10-resnet",
    weights: options.Weights = None,
    out: Annotated[str, Option(help="The run's directory; the same command again resumes it.")] = "runs/demo",
    count: Annotated[
        int | None, Option(help="At most how many images to attack in each step (default: 20, 120 and 20).")
    ] = None,
    full: Annotated[bool, Option("--full", help="Larger samples: 1,000 to 2,000 images in each step.")] = False,
    processes: Annotated[
        int | None, Option(help="Share the work among this many processes (default: one per core, up to 4).")
    ] = None,
    json: options.Json = False,
) -> None:
    """Change a robust CIFAR-10 model in two ways, by TTA and by forging, audit both, and write the report.

    [bold]Example[/]: lipforge demo --full --out runs/demo-full
    """
    if count is not None and count < 1:
        raise InputError(f"count must be at least 1, got {count}")
    sizes = FULL if full else SMALL
    classifier = lf.load_model(model, weights)
    _say(1, "getting CIFAR-10: from the cache, or else fetched once")
    training, test, sizes = _images(sizes, count)
    run, improved = options.open_run(out), lf.RunDir.open(Path(out) / "improved")
    most = min(MOST_PROCESSES, cores(), -(-sizes.judged // SHARD))
    with in_processes(most if processes is None else processes, out):
        found, judged = _improve(classifier, model, test, improved, sizes)
        attacked = _forge(classifier, model, training, test, run, sizes)
    if is_helper():
        return
    _say(7, "looking inside, and writing the report")
    if found.recipe is not None:
        found.recipe.save(improved.path / "recipe.json")
    lf.save_recipe(run.path / "recipe.json", classifier)
    _look_inside(classifier, attacked.forged, lf.take(test, sizes.test), run, sizes.analysed)
    result = _result(classifier, attacked, found, judged)
    run.write_result("comparison", result.difference)
    run.write_result("demo", result)
    report = lf.write_report(improved.path, run.path, out=run.path / "report.html")
    if not printed(json, result, report=report):
        _show(result, report)


def _images(sizes: Sizes, count: int | None) -> "tuple[DataSet, DataSet, Sizes]":
    """Training and test images, and the sizes that these and `count` allow."""
    training, test = (lf.load_data(f"cifar10-sample:{part}") for part in ("train", "test"))
    try:
        training, test = (lf.load_data(f"cifar10:{part}") for part in ("train", "test"))
    except DataError as error:
        note(f"CIFAR-10 is not available here, so the demo uses the 1,000 real images it ships with. {error}")
    most = {"calibration": len(training), "validation": len(test) // 2, "judged": (len(test) + 1) // 2}
    wanted = {name: min(size, most.get(name, len(test))) for name, size in vars(sizes).items()}
    if count is not None:
        wanted = {name: size if name == "calibration" else min(count, size) for name, size in wanted.items()}
    return training, test, Sizes(**wanted)


def _improve(
    model: "nn.Module", name: str, test: "DataSet", run: "lf.RunDir", sizes: Sizes
) -> "tuple[lf.ImproveResult, lf.AuditReport]":
    """A change that was chosen on some test images, and the audit of it on others; of averaging over the mirror image
    where nothing was chosen, so that there is a subject."""
    from lipforge.data.subsets import view

    _say(2, f"improving: does averaging over the mirror image help on {sizes.validation} held-out images?")
    others = view(test, range(sizes.judged, len(test)), name=f"{test.name}/from {sizes.judged} on")
    given = {"calibrate": 0, "validate": sizes.validation, "max_cost": 2, "parts": ("tta",)}
    given["shard_size"] = _shard(sizes.validation)
    found = lf.improve(model, others, THREAT, **given, run=run, name=name)  # type: ignore[arg-type]
    changed = lf.plain(model) if found.recipe is None else found.model
    if found.recipe is None:
        lf.set_tta_(changed, "mirror")
    _say(3, f"auditing that on up to {sizes.judged} test images")
    plan = lf.audit_plan(shard_size=_shard(sizes.judged))
    if sizes.judged < FULL.judged:  # a demo is short; docs/improve.md has audits with everything
        plan = replace(plan, boundary=lf.Boundary(), hard_label=lf.RayS(queries=500))
    judged = lf.take(test, sizes.judged)
    return found, lf.audit(changed, judged, THREAT, run=run, plan=plan, name=EXAMPLE.format(name))


class Attacked(NamedTuple):
    """Base and forged model under `fast`, and the audit."""

    base: "lf.RobustResult"
    forged: "lf.RobustResult"
    audit: "lf.AuditReport"


def _forge(
    model: "nn.Module", name: str, training: "DataSet", test: "DataSet", run: "lf.RunDir", sizes: Sizes
) -> Attacked:
    """Forge the model, attack it and audit it; what the run directory keeps is not computed again."""
    _say(4, f"forging {name}: bounds from {sizes.calibration:,} training images, one pass, no gradients")
    lf.forge_(model, lf.take(training, sizes.calibration), ratio=RATIO)
    test, size = lf.take(test, sizes.test), _shard(sizes.test)
    views = {"base": lf.plain(model), "forged": lf.forged(model)}
    _say(5, f"attacking {len(test)} test images, base and forged at {ratio_text(RATIO)}")
    base, forged = (
        lf.evaluate(
            view, test, lf.fast(), THREAT, run=run, label=label, model_name=name, save_images=True, shard_size=size
        )
        for label, view in views.items()
    )
    _say(6, "auditing that: attacks that know of the masks, and as much effort against the base")
    return Attacked(
        base, forged, lf.audit(model, test, THREAT, plan=lf.audit_plan(shard_size=size), run=run, name=name)
    )


def _result(
    model: "nn.Module", attacked: Attacked, found: "lf.ImproveResult", judged: "lf.AuditReport"
) -> "DemoResult":
    from lipforge.results import DemoResult

    recipe, (base, forged, audited) = lf.recipe_of(model), attacked
    return DemoResult(
        model=base.model,
        data=base.data,
        threat=str(THREAT),
        attack=base.attack,
        sites=len(recipe.sites),
        calibrated_on=recipe.images_seen,
        ratio=RATIO,
        count=base.count,
        base=base.robust_accuracy,
        forged=forged.robust_accuracy,
        clean_base=base.clean_accuracy,
        clean_forged=forged.clean_accuracy,
        difference=lf.compare(base, forged),
        verdict=audited.verdict,
        sentence=audited.sentence,
        failed_checks=audited.failed_checks,
        unreliable=forged.unreliable,
        change=forged.change,
        chosen=found.chosen,
        reason=found.reason,
        improved_verdict=judged.verdict,
        improved_sentence=judged.sentence,
        judged=judged.count,
    )


def _shard(count: int) -> int:
    """Images per shard: few, so that several processes have work."""
    return min(SHARD, -(-count // 2))


def _look_inside(model: "nn.Module", result: "lf.RobustResult", test: "DataSet", run: "lf.RunDir", count: int) -> None:
    """The analysis and the gallery, of the images that the evaluation of the forged model has kept."""
    import torch
    from safetensors.torch import load_file

    from lipforge.evaluation import task_name
    from lipforge.reports import make_gallery

    folder = run.path / "shards" / task_name(result.label, result.attack, THREAT, result.seed)
    kept = torch.cat([load_file(path)["images"] for path in sorted(folder.glob("*.safetensors"))])
    x, y = test.batch(range(min(count, len(test))))
    adversarial, view = kept[: len(x)], lf.forged(model)
    attack = f"{result.attack} {THREAT} on the forged model"
    analysis = lf.analyse(
        model, (x, y), adversarial, spectral_images=4, model_name=result.model, data_name=test.name, attack=attack
    )
    run.write_result("analysis", analysis)
    with torch.no_grad():
        before, after = (view(images).argmax(dim=1) for images in (x, adversarial))
    run.write_result("gallery", make_gallery(x, adversarial, y, before, after, class_names=CIFAR10))


def _say(step: int, text: str) -> None:
    notes.print(f"{step}/{STEPS}  {text}", soft_wrap=True)


def _show(result: "DemoResult", report: Path) -> None:
    forged = (f"forged at {ratio_text(result.ratio)}", result.clean_forged, result.forged)
    measured = (("base", result.clean_base, result.base), forged)
    rows = [[label, *(_share(share, result.count) for share in shares)] for label, *shares in measured]
    rows[-1][-1] += " unreliable" if result.unreliable else ""
    title = f"{result.model}, {result.data}, n = {result.count}: % correct with 95 % intervals"
    show_table(title, ["model", ">clean", f">{result.attack} {result.threat}"], rows)
    say(f"attack:  {result.difference}")
    say(f"audit:   {result.sentence}")
    for check in result.failed_checks:
        say(f"failed:  {check}")
    say(
        f"\nForged functions sit in front of {result.sites} layers; their thresholds come from "
        f"{result.calibrated_on:,} training images. The attack above trusts gradients; the audit also tries attacks "
        "that get past the masks, so its verdict is the one to quote. Its interval is the wider one, because it holds "
        "at any number of images.\n"
    )
    say(f"improve: {result.reason}")
    say(f"audit:   {result.improved_sentence}")
    chosen = (
        "It was chosen on some test images and judged on others."
        if result.chosen == "mirror"
        else "It was not chosen; the audit judged it on other images all the same."
    )
    say(
        "\nThe second change averages the logits of the image and its mirror image: no mask, no training, two forward "
        f"passes. {chosen} The first test images were among those on which this example was picked, so take it for an "
        "example; docs/improve.md has audits on images on which nothing was fitted, chosen or tuned."
    )
    say(f"report:  {report}")


def _share(share: float, count: int) -> str:
    from lipforge.statistics import clopper_pearson

    return share_text(share, clopper_pearson(round(share * count), count))
