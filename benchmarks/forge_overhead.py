"""What forged functions cost: forged against plain, in one process, in turns, as the median of paired ratios.

    python benchmarks/forge_overhead.py [--quick]

Peers: the same model without forged functions, and the mask written naively as x * (x.abs() > threshold).
The last line is JSON; it is also written to benchmarks/results/forge_overhead.json.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import lipforge as lf
from lipforge.models import load_model
from lipforge.records import write_json

TARGETS = {"forward": 1.05, "forward_backward": 1.10, "calibration": 1.05}
MODELS = {"wrn-28-10": 8, "preactresnet18": 32}
RESULTS = Path(__file__).parent / "results" / "forge_overhead.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a rough look")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory_of:
        print(peak_memory(options.memory_of))
        return
    rounds = 5 if options.quick else 15
    results: dict[str, object] = {"threads": options.threads, "rounds": rounds, "torch": torch.__version__}
    for name, batch_size in MODELS.items():
        results[name] = measure(name, batch_size, rounds)
        print_table(name, batch_size, results[name])
    few, many = (memory_in_fresh_process(count) for count in (256, 2048))
    results["calibration_memory_mb"] = {"256 images": few, "2048 images": many}
    print(f"peak memory of calibration: {few:.0f} MB for 256 images, {many:.0f} MB for 2048")
    write_json(RESULTS, results)
    print(json.dumps(results))


def measure(name: str, batch_size: int, rounds: int) -> dict[str, dict[str, float]]:
    """The median ratio and its quartiles for each question about one model."""
    model = load_model(name, pretrained=False)
    images = torch.rand(batch_size, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    lf.forge_(model, images, ratio=2**-6)
    plain, forged = lf.plain(model), lf.forged(model)
    naive = naive_copy(model)
    tracking = lf.forged(model)
    several = images.repeat(12, 1, 1, 1)  # long enough that the recipe's digest of the weights, once a pass, is small
    return {
        "forward": paired(lambda: forward(plain, images), lambda: forward(forged, images), rounds),
        "forward_naive_mask": paired(lambda: forward(plain, images), lambda: forward(naive, images), rounds),
        "forward_backward": paired(lambda: gradient(plain, images), lambda: gradient(forged, images), rounds),
        "forward_backward_naive_mask": paired(lambda: gradient(plain, images), lambda: gradient(naive, images), rounds),
        "calibration": paired(
            lambda: forward_batches(plain, several, batch_size),
            lambda: lf.calibrate_(tracking, several, batch_size=batch_size),
            max(rounds // 4, 5),
        ),
    }


def paired(base: Callable[[], object], other: Callable[[], object], rounds: int) -> dict[str, float]:
    """Run both in turns, first one then the other ahead; the median of other / base and its quartiles."""
    base(), other()
    ratios = []
    for index in range(rounds):
        order = (base, other) if index % 2 else (other, base)
        seconds = {work: timed(work) for work in order}
        ratios.append(seconds[other] / seconds[base])
    low, median, high = statistics.quantiles(ratios, n=4)
    return {"ratio": round(median, 4), "low": round(low, 4), "high": round(high, 4)}


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def forward(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(images)
        return logits


def forward_batches(model: nn.Module, images: Tensor, batch_size: int) -> None:
    for batch in images.split(batch_size):
        forward(model, batch)


def gradient(model: nn.Module, images: Tensor) -> Tensor:
    images = images.clone().requires_grad_()
    return torch.autograd.grad(model(images).logsumexp(dim=1).sum(), images)[0]


def naive_copy(model: nn.Module) -> nn.Module:
    """The peer: the same thresholds, each mask as a chain of elementwise operators."""
    thresholds = {name: float(forge.threshold) for name, forge in lf.forges(model).items()}
    copy = lf.plain(model)
    for name, threshold in thresholds.items():
        copy.get_submodule(name).register_forward_pre_hook(
            lambda layer, args, threshold=threshold: (args[0] * (args[0].abs() > threshold),)
        )
    return copy


def peak_memory(count: int) -> float:
    """The peak resident memory in MB of calibrating on `count` images that arrive one batch at a time."""
    model = load_model("preactresnet18", pretrained=False)
    lf.insert_(model, lf.find_sites(model), ratio=2**-6)
    lf.calibrate_(model, (torch.rand(32, 3, 32, 32) for _ in range(count // 32)))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def memory_in_fresh_process(count: int) -> float:
    command = [sys.executable, __file__, "--memory-of", str(count)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_table(name: str, batch_size: int, rows: dict[str, dict[str, float]]) -> None:
    print(f"{name}, batch {batch_size}: cost relative to the plain model, median [quartiles]")
    for question, row in rows.items():
        target = TARGETS.get(question)
        verdict = "" if target is None else f"  target {target:.2f}: {'met' if row['ratio'] <= target else 'MISSED'}"
        print(f"  {question:30s} {row['ratio']:.3f} [{row['low']:.3f}, {row['high']:.3f}]{verdict}")


if __name__ == "__main__":
    main()
