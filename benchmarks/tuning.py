"""The expensive end of `improve`: epochs of fine-tuning, and TTA distilled into one pass, as in docs/improve.md.

    python benchmarks/tuning.py --weights-dir DIR [--models resnet2b_eps2,cnn_a_adv4] [--images 1000] [--runs DIR]
    python benchmarks/tuning.py --weights-dir DIR --models pni_resnet20_adv_v0 --changes "mirror x diagonals distilled"

Distilling takes one epoch, TRADES two, on the 50,000 training images of CIFAR-10. `fast` attacks base and changes on
test images from --first on, which `improve` and its benchmark do not use; differences are paired. Tuned weights and
shards are kept in --runs: interrupted runs resume, a distillation from its start. The last line is JSON.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from peers import eps_of, load_any
from safetensors.torch import load_file, save
from torch import Tensor, nn

import lipforge as lf
from lipforge import rng
from lipforge.attacks import norms
from lipforge.data import DataSet
from lipforge.data.subsets import view
from lipforge.forge import tta_of, with_tta
from lipforge.progress import progress
from lipforge.records import write_json, write_whole
from lipforge.runs.identity import slug
from lipforge.text import points_text
from lipforge.training.objectives import augment, divergence

RUNS = Path(__file__).parent / "results" / "tuning"
BATCH, RATE, STEPS = 128, 3e-4, 5  # of distillation: Adam, and PGD steps for its adversarial images
COLUMNS = ("model, eps", "change", "passes", "minutes", "clean", "robust", "gained, lost")

Tuning = Callable[[nn.Module, DataSet, lf.Threat, Path], nn.Module]


def main() -> None:
    options = parse_options()
    torch.set_num_threads(options.threads)
    train, test = lf.load_data("cifar10:train"), lf.load_data("cifar10:test")
    images = range(options.first, options.first + options.images)
    judged = view(test, list(images), name=f"cifar10:test/{images.start} to {images.stop - 1}")
    rows = []
    for name in options.models.split(","):
        model, threat = load_any(name, options.weights_dir), lf.Threat("linf", "2/255")
        threat = threat if name == "cnn_a_adv4" else lf.Threat("linf", eps_of(name))
        folder = options.runs / name
        base, _ = attacked(model, judged, threat, folder / "base")
        print(f"{name}: clean {100 * base.clean_accuracy:.1f}, robust {100 * base.robust_accuracy:.1f}", flush=True)
        for change in options.changes:
            tuned, minutes = tuned_once(TUNINGS[change], model, train, threat, folder / slug(change))
            for tta in (None, "mirror"):
                changed = with_tta(tuned, lf.TTA.parse(tta) if tta else None)
                found, passes = attacked(changed, judged, threat, folder / slug(f"{change} {tta}"))
                label = f"{change} + {tta}" if tta else change
                rows.append(row(f"{name}, {threat.eps * 255:g}/255", label, passes, minutes, base, found))
                print(rows[-1]["text"], flush=True)
    print(f"\n| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    print("\n".join(each["text"] for each in rows))
    print(json.dumps(rows))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="cnn_a_adv4,resnet2b_eps2", help="names, separated by commas")
    parser.add_argument("--weights-dir", type=Path, help="a folder with the weights of the models that are not bundled")
    parser.add_argument("--changes", nargs="+", default=list(TUNINGS), choices=TUNINGS, help="how to tune")
    parser.add_argument("--images", type=int, default=1000, help="test images to attack")
    parser.add_argument("--first", type=int, default=4000, help="the position of the first of them")
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def attacked(model: nn.Module, data: DataSet, threat: lf.Threat, folder: Path) -> tuple[lf.RobustResult, int]:
    """The model under `fast`, and its forward passes per image."""
    tta = tta_of(model)
    with lf.RunDir.open(folder) as run:
        return lf.evaluate(model, data, lf.fast(), threat, run=run, label="model"), 1 if tta is None else tta.cost


def tuned_once(
    tune: Tuning, model: nn.Module, data: DataSet, threat: lf.Threat, folder: Path
) -> tuple[nn.Module, float]:
    """A tuned copy of the model, made once and then read from the folder, and the minutes that took."""
    weights, about = folder / "tuned.safetensors", folder / "tuned.json"
    copied = copy.deepcopy(model).requires_grad_(True)
    if not about.exists():
        started = time.perf_counter()
        copied = tune(copied, data, threat, folder)
        write_whole(weights, save({name: part.contiguous() for name, part in copied.state_dict().items()}))
        write_json(about, {"minutes": (time.perf_counter() - started) / 60})
    copied.load_state_dict(load_file(weights))
    return copied.eval().requires_grad_(False), json.loads(about.read_text())["minutes"]


def trades(*, awp: float) -> Tuning:
    """Two epochs of TRADES with averaged weights."""

    def tune(model: nn.Module, data: DataSet, threat: lf.Threat, folder: Path) -> nn.Module:
        config = lf.TrainConfig(
            method="trades", threat=threat, epochs=2, lr=0.01, ema=0.995, awp=awp, weight_decay=5e-4
        )
        lf.train(model, data, config, out=folder / "train")
        return model

    return tune


def distilled(tta: str) -> Tuning:
    """One epoch in which one forward pass learns the mean logits of `tta`, on clean and on adversarial images."""

    def tune(model: nn.Module, data: DataSet, threat: lf.Threat, folder: Path) -> nn.Module:
        teacher = with_tta(copy.deepcopy(model).eval().requires_grad_(False), lf.TTA.parse(tta))
        optimizer, norm = torch.optim.Adam(model.parameters(), lr=RATE), norms.of(threat)
        model.eval()  # batch norm keeps its statistics
        with progress(f"distilling {tta}", len(data)) as step:
            for done, (x, y, ids) in enumerate(batches(data)):
                x_adv = norm.random_start(x, threat.eps, seed=0, sample_ids=ids, stream="distilled", counter=0)
                for _ in range(STEPS):
                    x_adv.requires_grad_()
                    loss = nn.functional.cross_entropy(model(x_adv), y, reduction="sum")
                    (gradient,) = torch.autograd.grad(loss, x_adv)
                    x_adv = norm.step(x_adv.detach(), gradient, threat.eps / 2, x, threat.eps)
                both = torch.cat([x, x_adv])
                with torch.no_grad():
                    wanted = teacher(both)
                optimizer.param_groups[0]["lr"] = RATE * (1 - done * BATCH / len(data))
                optimizer.zero_grad()
                (divergence(wanted, model(both)) / len(both)).backward()
                optimizer.step()
                step(len(x), "")
        return model

    return tune


def batches(data: DataSet) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """All images once, in random order, mirrored half the time."""
    order = rng.uniform(0, torch.arange(len(data)), stream="distilled-order", shape=(1,)).squeeze(1).argsort()
    for ids in order.split(BATCH):
        x, y = data.batch(ids.tolist())
        yield augment(x, ids, seed=0, epoch=0, crop=0, flip=True), y, ids


def row(
    model: str, change: str, passes: int, minutes: float, base: lf.RobustResult, found: lf.RobustResult
) -> dict[str, object]:
    robust, clean = lf.compare(base, found), found.clean_accuracy - base.clean_accuracy
    cells = (
        model, change, str(passes), f"{minutes:.1f}", f"{100 * clean:+.1f}",
        points_text(robust.difference, robust.interval), f"{robust.gained}, {robust.lost}",
    )  # fmt: skip
    return {"text": f"| {' | '.join(cells)} |", "model": model, "change": change, "robust": asdict(robust)}


TUNINGS: dict[str, Tuning] = {
    "none": lambda model, data, threat, folder: model,
    "mirror distilled": distilled("mirror"),
    "mirror x diagonals distilled": distilled("mirror x diagonals"),
    "TRADES": trades(awp=0.0),
    "TRADES with AWP": trades(awp=0.005),
}


if __name__ == "__main__":
    main()
