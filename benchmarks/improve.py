"""What `improve` chooses on training images and what the audit says of it on test images, as in docs/improve.md.

    python benchmarks/improve.py --weights-dir DIR [--models cifar10-resnet,cnn_a_adv4] [--images 2000] [--runs DIR]
    python tools/tables.py

Parts are fitted on 5,000 training images of CIFAR-10 and chosen on --validate others; the audit uses test images from
--first on, and stops as soon as they decide. `fast` then attacks base and choice on all of them. With --tta the choice
is given: only judge it. Each model has a run directory of its own under --runs: interrupted runs resume. Choice
and judgement are written to benchmarks/results/improve.json; tools/tables.py puts them into docs/improve.md. With
--cost it times the parts instead. The last line is JSON.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from peers import eps_of, load_any

import lipforge as lf
from lipforge.batching import ImageData
from lipforge.data.subsets import view
from lipforge.improvement import fit_head
from lipforge.records import read_json, to_builtins, write_json
from lipforge.runs.identity import slug
from lipforge.statistics import paired
from lipforge.text import points_text

RESULTS = Path(__file__).parent / "results" / "improve.json"
MODELS = (
    "cnn_a_adv4", "resnet2b_eps2", "cifar10-vit", "cifar10-resnet", "pni_resnet20_adv_v0", "pni_resnet20_adv_v1"
)  # fmt: skip
EPS = {"cnn_a_adv4": "2/255"}  # the radius at which its authors verify it
MARKERS = {"tta": "o", "head": "s", "affine": "D", "forge": "^"}
LABELS = {"tta": "TTA, alone or with others", "head": "head", "affine": "affine", "forge": "forge"}
SETTINGS = ("first", "images", "calibrate", "validate", "max_cost", "parts", "all_images", "threads")
LEFT_OUT = ("outcome", "base_outcome", "candidate_outcome", "images")
"""What a run keeps of every image; the positions of those gained and lost, from the first image on, stay in."""


def main() -> None:
    options = parse_options()
    torch.set_num_threads(options.threads)
    if options.cost:
        print(json.dumps([cost(name, options.weights_dir) for name in options.models.split(",")]))
        return
    train, test = lf.load_data("cifar10:train"), lf.load_data("cifar10:test")
    images = range(options.first, options.first + options.images)
    judged = view(test, list(images), name=f"cifar10:test/{images.start} to {images.stop - 1}")
    for name in options.models.split(","):
        found = measure(name, train, judged, options)
        results = read_json(options.out) if options.out.exists() else {}
        results |= {name if options.tta is None else f"{name} | {options.tta}": found}
        write_json(options.out, results)
    if options.plot is not None:
        tried = {f"{name}, {one['eps']}": one["improve"] for name, one in results.items() if "improve" in one}
        plot(tried, options.plot)
    print(json.dumps(results))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    parser.add_argument("--weights-dir", type=Path, help="a folder with the weights of the models that are not bundled")
    parser.add_argument("--calibrate", type=int, default=5000)
    parser.add_argument("--validate", type=int, default=1000)
    parser.add_argument("--max-cost", type=int, default=6)
    parser.add_argument("--parts", default="tta,head,forge")
    parser.add_argument("--tta", help="judge these transforms, such as 'mirror x diagonals', and choose nothing")
    parser.add_argument("--images", type=int, default=2000, help="test images for the audit")
    parser.add_argument("--first", type=int, default=2000, help="the position of the first of them")
    parser.add_argument("--all-images", action="store_true", help="audit all of them, though fewer decide")
    parser.add_argument("--cost", action="store_true", help="only time attacks on the mirror TTA, and refits")
    parser.add_argument("--plot", type=Path, help="draw what was tried on all models in --out, as .svg or .png")
    parser.add_argument("--runs", type=Path, default=RESULTS.with_suffix(""))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def cost(name: str, folder: Path | None) -> dict[str, Any]:
    """CPU seconds of `fast` on 100 test images with mirror TTA over those without, interleaved, and of a refit."""
    model, threat = load_any(name, folder), lf.Threat("linf", EPS.get(name, eps_of(name)))
    images, sides = lf.load_data("cifar10:test").batch(range(100)), {"base": lf.plain(model), "mirror": lf.plain(model)}
    lf.set_tta_(sides["mirror"], "mirror")
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(3):
        for side, classifier in sides.items():
            started = time.process_time()
            lf.fast().run(classifier, *images, threat=threat)
            seconds[side].append(time.process_time() - started)
    ratios = sorted(mirror / base for base, mirror in zip(*seconds.values(), strict=True))
    started = time.process_time()
    fit_head(model, lf.load_data("cifar10:train", limit=5000), threat)
    found = {"model": name, "mirror_over_base": ratios, "refit_seconds": time.process_time() - started}
    print(found, flush=True)
    return found


def line(score: Any) -> str:
    """One candidate on the validation images."""
    change = score.robust_change
    gain = "" if change is None else f", {points_text(change.difference, change.interval)}, p = {score.p_value:.2g}"
    accuracies = f"clean {100 * score.clean_accuracy:.1f}, robust {100 * score.robust_accuracy:.1f}"
    spent = f"{score.cost} passes, fitted in {score.preparation:.0f} s, attacked in {score.seconds:.0f} s"
    return f"  {score.label}: {accuracies}{gain}; {spent}; {score.status}, n = {score.count}"


def plot(tried: dict[str, Any], path: Path) -> None:
    """Change in robust accuracy on the validation images over forward passes, and over minutes of fitting."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for number, (name, found) in enumerate(tried.items()):
        offset, colour = 0.06 * (number - (len(tried) - 1) / 2), f"C{number}"
        for score in found["candidates"]:
            change = score["robust_change"]
            if change is None:
                continue
            low, high = (abs(100 * (bound - change["difference"])) for bound in change["interval"])
            kind, chosen = "tta" if score["cost"] > 1 else score["parts"][0], score["label"] == found["chosen"]
            style = {"color": colour, "marker": MARKERS[kind], "capsize": 2, "elinewidth": 0.8}
            style |= {"markerfacecolor": colour if chosen else "white"}
            at = 100 * change["difference"], [[low], [high]]
            left.errorbar(score["cost"] + offset, *at, **style)
            right.errorbar(score["preparation"] / 60 + 0.3 * offset, *at, **style)
        left.plot([], [], color=colour, marker="o", ls="", label=name)
    parts = {part for found in tried.values() for score in found["candidates"] for part in score["parts"]}
    for kind, marker in ((kind, marker) for kind, marker in MARKERS.items() if kind == "tta" or kind in parts):
        right.plot([], [], color="grey", markerfacecolor="white", marker=marker, ls="", label=LABELS[kind])
    for axes, title in ((left, "forward passes per image"), (right, "minutes of fitting")):
        axes.axhline(0, color="black", lw=0.8)
        axes.set_xlabel(title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    left.set_ylabel("change in robust accuracy, points")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def measure(name: str, train: ImageData, judged: ImageData, options: argparse.Namespace) -> dict[str, Any]:
    """One model: what was tried and chosen, the audit of the choice, and `fast` on all of the test images."""
    model, threat = load_any(name, options.weights_dir), lf.Threat("linf", EPS.get(name, eps_of(name)))
    settings = {key: vars(options)[key] for key in SETTINGS} | {"torch": torch.__version__}
    found: dict[str, Any] = {"eps": f"{threat.eps * 255:g}/255", "settings": settings, "chosen": options.tta}
    if options.tta is None:
        with lf.RunDir.open(options.runs / name) as run:
            improved = lf.improve(
                model, train, threat, calibrate=options.calibrate, validate=options.validate,
                max_cost=options.max_cost, parts=options.parts.split(","), run=run, name=name,
            )  # fmt: skip
        print(f"{name}: {improved}", *map(line, improved.candidates), sep="\n", flush=True)
        found |= {"chosen": improved.chosen, "improve": summary(improved.record)}
        if improved.recipe is None:
            return found
        model = improved.model
    else:
        lf.set_tta_(model, options.tta)
    chosen = found["chosen"]
    plan = lf.audit_plan(classes=10, stop_early=not options.all_images)
    with lf.RunDir.open(options.runs / f"{name}-{slug(chosen)}") as run:  # another choice is another audit
        report = lf.audit(model, judged, threat, run=run, plan=plan, name=f"{name}, {chosen}")
        print(f"{report}\n({report.seconds:.0f} s)", flush=True)
        base = lf.evaluate(lf.plain(model), judged, lf.fast(), threat, run=run, label="base")
        changed = lf.evaluate(model, judged, lf.fast(), threat, run=run, label="changed")
    sides = {"base": base, "changed": changed, "difference": lf.compare(base, changed)}
    if report.count < len(judged):  # the images that the audit has not seen confirm it, or do not
        sides["after_audit"] = paired(base.robust[report.count :], changed.robust[report.count :])
    print(f"fast: {sides['difference']}", flush=True)
    return found | {"audit": summary(report), "fast": {key: summary(side) for key, side in sides.items()}}


def summary(value: Any) -> Any:
    """A result as JSON keeps it, without what it says of every single image."""
    value = to_builtins(value)
    if isinstance(value, dict):
        return {key: summary(part) for key, part in value.items() if key not in LEFT_OUT}
    return [summary(part) for part in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
