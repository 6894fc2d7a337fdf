"""What a search over three ratios costs, against the robust evaluation of one ratio by the same attack.

    python benchmarks/search.py [--images 200] [--metric union] [--exhaustive] [--threads 2] [--repeats 3]
    python benchmarks/search.py --model resnet2b_eps2 --weights-dir DIR --data cifar10 --first 5000 --images 1000

The peer is `evaluate` on the forged model at 2^-7 (with --metric union also through the straight-through view), on the
same images, with nothing shared. The search attacks all three ratios and the base. The two take turns, and the ratio is
the median over the turns. With --exhaustive the search runs once more with every image attacked in full, to see whether
skipping images changed an outcome. The last line is JSON; it is also written to benchmarks/results/search.json.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from peers import eps_of, load_any
from torch import Tensor

import lipforge as lf
from lipforge.attacks import parse_attack
from lipforge.evaluation import evaluate
from lipforge.records import write_json
from lipforge.results import SearchResult
from lipforge.search import choose_ratio

TARGET = 1.5
RATIOS = (2**-8, 2**-7, 2**-6)
RESULTS = Path(__file__).parent / "results" / "search.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--model", default="cifar10-resnet")
    parser.add_argument("--weights-dir", type=Path, help="a folder with the weights of models that are not bundled")
    parser.add_argument("--data", default="cifar10-sample", help="where the images come from")
    parser.add_argument("--first", type=int, default=0, help="the position of the first image")
    parser.add_argument("--attack", default="fast")
    parser.add_argument("--metric", choices=("non-adaptive", "union"), default="union")
    parser.add_argument("--exhaustive", action="store_true", help="also search without skipping any image")
    parser.add_argument("--batch", type=int, default=500, help="images that are attacked together")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = load_any(options.model, options.weights_dir)
    lf.forge_(model, lf.load_data("cifar10-sample:train"), ratio=2**-7)
    data = lf.load_data(options.data).batch(range(options.first, options.first + options.images))
    threat, attack = lf.Threat("linf", eps_of(options.model)), parse_attack(options.attack)
    keywords: dict[str, Any] = {"threat": threat, "attack": attack, "metric": options.metric, "ratios": RATIOS}
    keywords |= {"all_ratios": True, "shard_size": min(options.images, options.batch)}
    turns = []
    for _ in range(options.repeats):
        # Processor time beside the clock: on a busy machine only that can be compared.
        started = time.process_time()
        one = alone(model, data, attack, threat, options)
        between = time.process_time()
        found = choose_ratio(model, data, **keywords)
        search = {**cost(found), "cpu_seconds": time.process_time() - between}
        turns.append((search, {**one, "cpu_seconds": between - started}))
    ratios = {name: sorted(search[name] / one[name] for search, one in turns) for name in turns[0][0]}
    results = {
        "model": options.model,
        "images": options.images,
        "data": options.data,
        "first": options.first,
        "attack": options.attack,
        "metric": options.metric,
        "batch": options.batch,
        "threads": options.threads,
        "torch": torch.__version__,
        "target": TARGET,
        "search": turns[-1][0],
        "one_ratio": turns[-1][1],
        "ratio": {name: statistics.median(found) for name, found in ratios.items()},
        "range": {name: [found[0], found[-1]] for name, found in ratios.items()},
        "scores": {
            score.label: f"{score.status}, {score.robust_count} of {score.count} robust" for score in found.scores
        },
        "skipped": sum(score.skipped for score in found.scores),
        "rechecked": sum(score.rechecked for score in found.scores),
        "rechecked_broken": sum(score.rechecked_broken for score in found.scores),
        "reason": found.reason,
    }
    if options.exhaustive:
        results["exhaustive"] = against(found, choose_ratio(model, data, **keywords, skip_above=None))
    show(results)
    write_json(RESULTS, results)
    print(json.dumps(results))


def alone(
    model: torch.nn.Module, data: tuple[Tensor, Tensor], attack: Any, threat: lf.Threat, options: argparse.Namespace
) -> dict[str, float]:
    """The cost of evaluating the ratio 2^-7 by itself."""
    lf.set_ratio_(model, 2**-7)
    views = [lf.forged(model)] if options.metric == "non-adaptive" else [lf.forged(model), lf.straight_through(model)]
    images, labels = data
    forwards, backwards, seconds = 0, 0, 0.0
    for number, view in enumerate(views):
        # The second view gets only the images that are still robust, as in the search.
        result = evaluate(view, (images, labels), attack, threat, seed=number, batch_size=options.batch)
        forwards, backwards = forwards + result.forwards, backwards + result.backwards
        seconds += result.seconds
        keep = torch.tensor(result.robust)
        images, labels = images[keep], labels[keep]
    return {"passes": float(forwards + backwards), "seconds": seconds}


def cost(found: SearchResult) -> dict[str, float]:
    """Passes and seconds of a search, the base included."""
    return {"passes": float(found.forwards + found.backwards), "seconds": found.seconds}


def against(screened: SearchResult, full: SearchResult) -> dict[str, Any]:
    """What attacking every image in full costs and changes: images that are robust in only one of the searches."""
    changed = {}
    for one, other in zip(screened.scores, full.scores, strict=True):
        pairs = list(zip(one.robust, other.robust, strict=False))
        changed[one.label] = {"only here": pairs.count((True, False)), "only in full": pairs.count((False, True))}
    return {**cost(full), "robust": changed, "same_choice": screened.chosen == full.chosen}


def show(results: dict[str, Any]) -> None:
    """The ratios in words."""
    print(", ".join(str(results[key]) for key in ("model", "data", "images", "attack", "metric")))
    for name in ("passes", "seconds", "cpu_seconds"):
        search, one, ratio, (low, high) = (results[key][name] for key in ("search", "one_ratio", "ratio", "range"))
        measured = f"{name}: search {search:.0f}, one ratio {one:.0f}"
        print(f"{measured}: {ratio:.2f} [{low:.2f}, {high:.2f}] times (target {TARGET})")
    broken = f"{results['rechecked_broken']} of {results['rechecked']} rechecked ones broke"
    print(f"skipped {results['skipped']} images; {broken}")
    print(results["reason"])
    if full := results.get("exhaustive"):
        print(f"in full: {full['passes']:.0f} passes; same choice: {full['same_choice']}")
        print(f"images that are robust in one search only: {full['robust']}")


if __name__ == "__main__":
    main()
