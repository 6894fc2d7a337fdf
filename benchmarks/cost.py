"""What the paper's tables would cost: passes per image by outcome, FLOPs per pass, device-hours per table.

    python benchmarks/cost.py [--images 24] [--standard-images 8] [--tflops 20]

Passes per image are measured on the bundled cifar10-resnet and the first test images of cifar10-sample; they depend on
the attack and on the outcome of the image, not on the size of the model. FLOPs are counted by torch on the paper's
architectures with random weights. A forward and a backward pass cost the same: attacks need no gradients of weights.
Shares of robust, broken and misclassified images are those that the paper prints. The rate is an assumption, to be
replaced by that of your device; it enters as 1 / rate.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from lipforge.attacks import is_misclassified, parse_attack
from lipforge.data import load_data
from lipforge.models import load_model
from lipforge.paper import load_paper
from lipforge.records import write_json
from lipforge.types import Threat

RESULTS = Path(__file__).parent / "results" / "cost.json"
ATTACKS = {
    "fast": "fast",
    "AA": "autoattack",
    "FGSM": "fgsm",
    "PGD": "pgd",
    "CW": "cw",
}
COUNTS = {"CIFAR-10": 10_000, "CIFAR-100": 10_000, "ImageNet": 5_000}
SPECS = {
    "wrn-28-10": 32,
    "wrn-34-10": 32,
    "wrn-70-16": 32,
    "timm:swin_large_patch4_window7_224": 224,
    "timm:convnext_large": 224,
    "timm:convnextv2_large": 224,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument(
        "--standard-images", type=int, default=8, help="for AutoAttack: a robust image takes thousands of passes"
    )
    parser.add_argument("--tflops", type=float, default=20.0, help="sustained 10^12 operations per second of a device")
    options = parser.parse_args()
    passes = {
        name: measured(text, options.standard_images if name == "AA" else options.images)
        for name, text in ATTACKS.items()
    }
    gflops = {spec: operations(spec, size) for spec, size in SPECS.items()}
    tables = cost(passes, gflops, options.tflops)
    print_all(passes, gflops, tables, options.tflops)
    results = {
        "passes": passes,
        "gflops": gflops,
        "tflops": options.tflops,
        "tables": tables,
        "torch": torch.__version__,
    }
    write_json(RESULTS, results)
    print(json.dumps(results))


def measured(text: str, count: int) -> dict[str, dict[str, float]]:
    """Mean forwards and backwards of broken and of robust images, with how many there were."""
    model, threat = load_model("cifar10-resnet"), Threat("linf", "8/255")
    data = load_data("cifar10-sample")
    x, y = data.batch(list(range(count)))
    right = ~is_misclassified(model, x, y)
    result = parse_attack(text).run(model, x[right], y[right], threat=threat)
    found = {}
    for name, rows in (("broken", result.broken), ("robust", ~result.broken)):
        number = int(rows.sum())
        forwards, backwards = (float(part[rows].sum()) / max(number, 1) for part in (result.forwards, result.backwards))
        found[name] = {"images": number, "forwards": forwards, "backwards": backwards}
    return found


def operations(spec: str, size: int) -> float:
    """10^9 floating-point operations of one forward pass; a multiplication and its addition are two."""
    model = load_model(spec, pretrained=False)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 3, size, size))
    return float(counter.get_total_flops()) / 1e9


def cost(
    passes: dict[str, dict[str, dict[str, float]]], gflops: dict[str, float], tflops: float
) -> dict[str, dict[str, float]]:
    """For each table: how many evaluations it holds, and their device-hours with AutoAttack and with fast."""
    rows = load_paper()
    clean = {(row.table, row.model, row.variant, row.ratio): row.accuracy for row in rows if row.attack == "clean"}
    tables: dict[str, dict[str, float]] = defaultdict(lambda: {"evaluations": 0, "hours": 0.0, "hours_fast": 0.0})
    for row in rows:
        if row.attack == "clean":
            continue
        base = [share for key, share in clean.items() if key[1] == row.model]
        right = clean.get((row.table, row.model, row.variant, row.ratio), max(base, default=100.0))
        robust = row.accuracy / 100
        broken = max(right / 100 - robust, 0.0)
        weight = COUNTS[row.dataset] * sum(gflops[spec] for spec in architectures(row.model)) * 1e9
        entry = tables[row.table]
        entry["evaluations"] += 1
        # Transferred images are crafted by AutoAttack, as in docs/reproducing.md.
        attack = "AA" if row.attack == "transfer" else row.attack
        for field, by in (("hours", passes[attack]), ("hours_fast", passes["fast" if attack == "AA" else attack])):
            each = (
                1
                - right / 100
                + sum(  # one pass for a misclassified image
                    share * (by[name]["forwards"] + by[name]["backwards"])
                    for name, share in (("broken", broken), ("robust", robust))
                )
            )
            entry[field] += weight * each / (tflops * 1e12) / 3600
    return dict(tables)


def architectures(model: str) -> list[str]:
    """The architectures behind a model's name in the paper; an ensemble has two."""
    if "ConvNeXtV2-L + Swin-L" in model:
        return ["timm:convnextv2_large", "timm:swin_large_patch4_window7_224"]
    known = {"WRN-70-16": "wrn-70-16", "ConvNeXt-L": "timm:convnext_large", "RST-AWP": "wrn-28-10"}
    known["Swin-L"] = "timm:swin_large_patch4_window7_224"
    return [next((spec for part, spec in known.items() if part in model), "wrn-34-10")]


def print_all(
    passes: dict[str, dict[str, dict[str, float]]],
    gflops: dict[str, float],
    tables: dict[str, dict[str, float]],
    tflops: float,
) -> None:
    for name, by in passes.items():
        parts = [
            f"{key} ({by[key]['images']:.0f} images) {by[key]['forwards']:,.0f} + {by[key]['backwards']:,.0f}"
            for key in ("broken", "robust")
        ]
        print(f"{name:8s} forwards + backwards per image: {', '.join(parts)}")
    for spec, number in gflops.items():
        print(f"{spec:40s} {number:8.1f} GFLOP per forward")
    print(f"device-hours at {tflops:g} TFLOP/s sustained")
    for table, row in tables.items():
        hours = f"{row['hours']:9.1f} h, fast {row['hours_fast']:8.1f} h"
        print(f"  table {table:3s} {row['evaluations']:4.0f} evaluations {hours}")


if __name__ == "__main__":
    main()
