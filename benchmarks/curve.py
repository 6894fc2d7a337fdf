"""What a robustness curve costs and finds, beside one `fast` evaluation per radius and foolbox's minimum-norm attacks.

    python benchmarks/curve.py [--images 60] [--first 5000] [--steps 100] [--norm linf --norm l2 --norm l1]

All on the bundled cifar10-resnet and test images of CIFAR-10 that the curve was not tuned on. Passes are forwards and
backwards together, per image of the data. For foolbox they are counted outside, and its points are judged by the model
itself. A curve should leave no more images robust than `fast` at any radius, and cost at most three `fast` evaluations.
The last line is JSON; it is also written to benchmarks/results/curve.json.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import foolbox
import torch
from torch import Tensor, nn

from lipforge.attacks import is_misclassified, norms
from lipforge.data import load_data
from lipforge.data.subsets import view
from lipforge.evaluation import curve, evaluate
from lipforge.models import load_model
from lipforge.records import write_json
from lipforge.types import Norm, Threat

RESULTS = Path(__file__).parent / "results" / "curve.json"
RADII: dict[Norm, tuple[str, str, str]] = {
    "linf": ("2/255", "4/255", "8/255"),
    "l2": ("0.25", "0.5", "1"),
    "l1": ("4", "8", "12"),
}
PEERS = {
    "linf": {"foolbox FMN": foolbox.attacks.LInfFMNAttack},
    "l2": {"foolbox FMN": foolbox.attacks.L2FMNAttack, "foolbox DDN": foolbox.attacks.DDNAttack},
    "l1": {"foolbox FMN": foolbox.attacks.L1FMNAttack},
}


class Counted(nn.Module):
    """The model, with the images that went forward, and those that can come back as gradients."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.passes = model, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += len(x) * (2 if x.requires_grad else 1)
        logits: Tensor = self.model(x)
        return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=60)
    parser.add_argument("--first", type=int, default=5000, help="the position of the first image")
    parser.add_argument("--steps", type=int, default=100, help="of foolbox's attacks")
    parser.add_argument("--norm", action="append", choices=list(RADII))
    options = parser.parse_args()
    model, data = load_model("cifar10-resnet"), load_data("cifar10:test")
    data = view(data, range(options.first, options.first + options.images), name=f"cifar10:test from {options.first}")
    rows: list[dict[str, Any]] = []
    for norm in options.norm or RADII:
        x, y = data.batch(range(len(data)))
        found = [by_fast(model, data, norm), by_curve(model, data, norm)]
        found += [by_peer(model, x, y, norm, name, kind(steps=options.steps)) for name, kind in PEERS[norm].items()]
        for row in found:
            rows.append({"norm": norm, **row})
            print(f"{norm:5} {row['attack']:13} robust {row['robust']}  {row['passes']:6.0f} passes/image "
                  f"{row['seconds']:6.1f} s", flush=True)  # fmt: skip
    results = {
        "rows": rows,
        "radii": RADII,
        "images": options.images,
        "first": options.first,
        "torch": torch.__version__,
    }
    write_json(RESULTS, results)
    print(json.dumps(results))


def by_fast(model: nn.Module, data: Any, norm: Norm) -> dict[str, Any]:
    """One evaluation per radius; passes and seconds are their means."""
    found = [evaluate(model, data, "fast", Threat(norm, eps), show_progress=False) for eps in RADII[norm]]
    passes = sum(one.forwards + one.backwards for one in found) / len(found) / len(data)
    seconds = sum(one.seconds for one in found) / len(found)
    return {"attack": "fast", "robust": [one.robust_count for one in found], "passes": passes, "seconds": seconds}


def by_curve(model: nn.Module, data: Any, norm: Norm) -> dict[str, Any]:
    found = curve(model, data, norm, show_progress=False)
    robust = [sum(found.robust_at(Threat(norm, eps).eps)) for eps in RADII[norm]]
    passes = (found.forwards + found.backwards) / len(data)
    return {"attack": found.attack, "robust": robust, "passes": passes, "seconds": found.seconds}


def by_peer(model: nn.Module, x: Tensor, y: Tensor, norm: Norm, name: str, attack: Any) -> dict[str, Any]:
    """All images at once, as its users run it; the misclassified ones cost it as much as the others."""
    counted, started = Counted(model).eval(), time.perf_counter()
    _, points, _ = attack(foolbox.PyTorchModel(counted, bounds=(0, 1)), x, y, epsilons=None)
    seconds = time.perf_counter() - started
    points, correct = points.clamp(0.0, 1.0), ~is_misclassified(model, x, y)
    distance = torch.where(is_misclassified(model, points, y), norms.of(norm).distance(points - x), torch.inf)
    robust = [int((correct & (distance > Threat(norm, eps).eps)).sum()) for eps in RADII[norm]]
    return {"attack": name, "robust": robust, "passes": counted.passes / len(x), "seconds": seconds}


if __name__ == "__main__":
    main()
