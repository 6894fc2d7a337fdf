"""lipforge's autoattack and fast against pyautoattack: same models, images and threads; robust images and time.

    python benchmarks/autoattack.py [--images 70] [--attacks reference,fast] [--rounds 3] [--weights-dir DIR]
    python benchmarks/autoattack.py --model cifar10-resnet --recipe-ratio 2^-6 --eps 8/255 --out forged.json
    python benchmarks/autoattack.py --only cifar10-resnet --tta mirror --attacks apgd-t --at 2009,2104 --out gained.json
    python tools/tables.py

In every round each tool attacks the round's own images, one tool after the other, with the round's number as the seed.
Each measurement (model, tool, attack, seed) is written to benchmarks/results/autoattack.json, so an interrupted run
resumes; --fresh measures everything again. If the code of the attacks has changed, lipforge is measured again, but not
the reference. Times are CPU seconds, summed over threads: other jobs on the machine distort them less than times on
the clock. The process keeps the memory that it frees, as the command line does, which may speed up all tools. The last
line is JSON; tools/tables.py puts the file's table into README and docs/attacks.md.
"""

import argparse
import hashlib
import itertools
import json
import logging
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyautoattack
import torch
from peers import PEERS, load_peer
from torch import Tensor, nn

import lipforge as lf
from lipforge.allocator import keep_freed_memory
from lipforge.attacks import AttackResult, parse_attack
from lipforge.models.architectures import bundled_names
from lipforge.records import read_json, write_json
from lipforge.types import Threat, parse_number

RESULTS = Path(__file__).parent / "results" / "autoattack.json"
REPEATS = 5
BUNDLED = {"cifar10-resnet": "8/255", "cifar10-vit": "8/255", "cifar10-resnet-natural": "8/255"}


@dataclass(frozen=True)
class Subject:
    """A model to attack: its name in the table, how to get it, and the threat."""

    name: str
    build: Callable[[], nn.Module]
    eps: str


def main() -> None:
    options = parse_options()
    torch.set_num_threads(options.threads)
    data = lf.load_data(options.data)
    chosen = [int(position) for position in options.at.split(",")] if options.at else None
    rounds, count = (1, len(chosen)) if chosen else (options.rounds, options.images)
    settings = {
        "keeps_memory": keep_freed_memory(),
        "images": count,
        "data": options.data,
        "threads": options.threads,
        "torch": torch.__version__,
    }
    results = read_json(options.out) if options.out.exists() else {}
    for subject in subjects(options):
        model, name = subject.build(), subject.name
        if options.tta:
            lf.set_tta_(model, options.tta)
            name += f", {options.tta}"
        for seed, attack in itertools.product(range(rounds), options.attacks.split(",")):
            key, first = f"{name} | {attack} | seed {seed}", options.first + seed * count
            stamp = {**settings, "first": first, "eps": subject.eps} | ({"at": chosen} if chosen else {})
            stamp |= {} if attack == "reference" else {"code": code_digest()}
            known = results.get(key)
            if known is None or known["settings"] != stamp or options.fresh:
                print(f"measuring {key} ...", flush=True)
                images, labels = data.batch(chosen or range(first, first + count))
                warm_up(model, images[:8])
                found = measure(model, images, labels, subject, attack, seed)
                results[key] = {"settings": stamp, "measured": time.strftime("%Y-%m-%d %H:%M"), **found}
                write_json(options.out, results)
                print(f"  {found['robust']} robust, {found['seconds']:.1f} s", flush=True)
    print(json.dumps(results))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=70, help="how many in each round")
    parser.add_argument("--first", type=int, default=5000, help="the position of the first round's first image")
    parser.add_argument("--at", help="only the images at these positions, separated by commas, in one round")
    parser.add_argument("--data", default="cifar10:test", help="a data set with labels")
    parser.add_argument("--attacks", default="reference,autoattack,fast", help="reference is pyautoattack")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="each with images and a seed of its own")
    parser.add_argument(
        "--weights-dir", type=Path, help=f"a folder with any of {', '.join(p.file for p in PEERS.values())}"
    )
    parser.add_argument("--only", help="of the default models only these, separated by commas")
    parser.add_argument("--model", help="only this model, as lipforge.load_model takes it")
    parser.add_argument("--weights", help="its weights")
    parser.add_argument("--eps", default="8/255", help="for --model")
    parser.add_argument("--tta", help="with this set of transforms, mirror for example")
    parser.add_argument("--recipe-ratio", help="forge --model with Step at this ratio, 2^-6 for example")
    parser.add_argument("--fresh", action="store_true", help="measure again what is known")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if (options.model or options.tta or options.at) and options.out == RESULTS:
        raise SystemExit(f"--model, --tta and --at need --out: {RESULTS.name} has the measurements of the table only")
    return options


def subjects(options: argparse.Namespace) -> list[Subject]:
    """The models that were asked for; by default the bundled ones, one of them forged, and those of --weights-dir."""
    if options.model:
        ratio = parse_number(options.recipe_ratio, name="--recipe-ratio") if options.recipe_ratio else 0.0
        name = options.model + (f" {options.weights}" if options.weights else "")
        name += f" forged {options.recipe_ratio}" if ratio else ""
        return [Subject(name, lambda: bundled(options.model, ratio, options.weights), options.eps)]
    found = [
        Subject(name, lambda name=name: bundled(name), eps) for name, eps in BUNDLED.items() if name in bundled_names()
    ]
    found.insert(1, Subject("cifar10-resnet forged 2^-6", lambda: bundled("cifar10-resnet", 2**-6), "8/255"))
    for name, peer in PEERS.items():
        if options.weights_dir and (options.weights_dir / peer.file).exists():
            found.append(Subject(name, lambda peer=peer: load_peer(peer, options.weights_dir), peer.eps))
    wanted = options.only.split(",") if options.only else [subject.name for subject in found]
    unknown = sorted(set(wanted) - {subject.name for subject in found})
    if unknown:
        raise SystemExit(f"--only must name models of the table, got {unknown[0]!r}")
    return [subject for subject in found if subject.name in wanted]


def bundled(spec: str, ratio: float = 0.0, weights: str | None = None) -> nn.Module:
    """The model, or its forged view, calibrated on the 500 sample images of the training set."""
    model = lf.load_model(spec, weights).requires_grad_(False)
    if not ratio:
        return model
    lf.forge_(model, lf.load_data("cifar10-sample:train"), mask=lf.Step(), ratio=ratio)
    return lf.forged(model)


def code_digest() -> str:
    """A digest of the code of the attacks."""
    digest = hashlib.sha256()
    for path in sorted(Path(lf.attacks.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def warm_up(model: nn.Module, images: Tensor) -> None:
    x = images.clone().requires_grad_()
    torch.autograd.grad(model(x).sum(), x)


def measure(
    model: nn.Module, images: Tensor, labels: Tensor, subject: Subject, attack: str, seed: int
) -> dict[str, Any]:
    if attack == "reference":
        return reference(model, images, labels, subject, seed)
    return ours(model, images, labels, subject, attack, seed)


def reference(model: nn.Module, images: Tensor, labels: Tensor, subject: Subject, seed: int) -> dict[str, Any]:
    """pyautoattack standard: robust images after each attack, and the seconds of the whole."""
    left, log = {}, logging.getLogger("auto-attack")

    class Reader(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found = re.search(r"robust accuracy after (\S+): ([\d.]+)%", record.getMessage())
            if found:
                left[found[1].lower()] = round(float(found[2]) / 100 * len(images))

    reader, level = Reader(), log.level
    log.addHandler(reader)
    log.setLevel(logging.DEBUG)
    eps = Threat("linf", subject.eps).eps
    started = time.process_time()
    attack = pyautoattack.AutoAttack(model, norm="Linf", eps=eps, version="standard", seed=seed, device="cpu")
    x_adv, _ = attack.run_standard_evaluation(images.clone(), labels.clone(), batch_size=len(images))
    seconds = time.process_time() - started
    log.removeHandler(reader)
    log.setLevel(level)
    with torch.no_grad():
        clean, robust = (model(x).argmax(dim=1) == labels for x in (images, x_adv))
    return {"clean": int(clean.sum()), **survivors(robust), "after": left, "seconds": seconds}


def ours(model: nn.Module, images: Tensor, labels: Tensor, subject: Subject, attack: str, seed: int) -> dict[str, Any]:
    """The same for an attack of lipforge, with the passes per image; a short attack is timed several times."""
    seconds = []
    for _ in range(REPEATS if attack == "fast" else 1):
        started = time.process_time()
        result: AttackResult = parse_attack(attack).run(
            model, images, labels, threat=Threat("linf", subject.eps), seed=seed
        )
        seconds.append(time.process_time() - started)
    return {
        "clean": sum(outcome != "misclassified" for outcome in result.outcome),
        **survivors(~result.broken),
        "after": {stage.attack: stage.robust for stage in result.stages if stage.attack != "clean"},
        "stage_seconds": {stage.attack: round(stage.seconds, 3) for stage in result.stages},
        "forwards": float(result.forwards.float().mean()),
        "backwards": float(result.backwards.float().mean()),
        "early_stopped": int(result.early_stopped.sum()),
        "notes": [str(note) for note in result.notes],
        "seconds": statistics.median(seconds),
    }


def survivors(robust: Tensor) -> dict[str, Any]:
    """How many images are robust, and which of the round's."""
    return {"robust": int(robust.sum()), "robust_images": robust.nonzero().flatten().tolist()}


if __name__ == "__main__":
    main()
