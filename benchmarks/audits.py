"""The audits of docs/audit.md: every mask and ratio on the bundled residual net and on robust nets of others.

    python benchmarks/audits.py --weights-dir DIR [--images 500] [--models cifar10-resnet,resnet2b_eps2] [--runs DIR]

Bounds come from the first 5,000 training images of CIFAR-10, verdicts from the first test images. Each audit has a run
directory of its own under --runs: interrupted audits resume, and processes with different --models can share the
machine. "Early-stopped" counts robust images that every gradient attack stopped early. The last line is JSON.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from peers import load_any

import lipforge as lf
from lipforge.forge import parse_mask
from lipforge.types import parse_number

RUNS = Path(__file__).parent / "results" / "audits"
BUNDLED = "cifar10-resnet"
MODELS = {BUNDLED: "8/255", "pni_resnet20_adv_v0": "8/255", "resnet2b_eps2": "2/255"}
SETTINGS = [(mask, ratio) for mask in ("step", "piecewise") for ratio in ("2^-8", "2^-7", "2^-6")]
CENTRED = ("mean-centred", "0.2")
"""MeanSparse's operator, at one setting and on the bundled net; its ratio counts standard deviations."""


def main() -> None:
    options = parse_options()
    torch.set_num_threads(options.threads)
    calibration = lf.load_data("cifar10:train", limit=5000)
    test = lf.load_data("cifar10:test", limit=options.images)
    rows = []
    for name in options.models.split(","):
        threat = lf.Threat("linf", MODELS[name])
        for mask, ratio in [*SETTINGS, *([CENTRED] if name == BUNDLED else [])]:
            model = load_any(name, options.weights_dir)
            lf.forge_(model, calibration, mask=parse_mask(mask), ratio=parse_number(ratio, name="ratio"))
            with lf.RunDir.open(options.runs / f"{name}-{mask}-{ratio}") as run:
                report = lf.audit(model, test, threat, run=run, name=f"{name}, {mask} {ratio}")
            print(f"{report.model}: {report.sentence} ({report.seconds:.0f} s)", flush=True)
            rows.append(row(report))
    columns = ("", "clean", "non-adaptive", "union", "early-stopped", "paired difference", "verdict")
    print(f"\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    print("\n".join(row["text"] for row in rows))
    print(json.dumps(rows))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    parser.add_argument("--weights-dir", type=Path, help="a folder with the weights of the models that are not bundled")
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def row(report: lf.AuditReport) -> dict[str, Any]:
    """The figures of one audit, and its line of the table."""
    sides = [(report.clean, "clean"), (report.non_adaptive, "non_adaptive"), (report.union, "union")]
    shares = {name: [side.base_accuracy, side.candidate_accuracy] for side, name in sides}
    columns = [" to ".join(f"{100 * share:.1f}" for share in pair) for pair in shares.values()]
    union = report.union
    columns.append(f"{report.base_early_stopped} to {report.candidate_early_stopped}")
    change, low, high = (100 * part for part in (union.difference, *union.interval))
    columns.append(f"{change:+.1f} [{low:+.1f}, {high:+.1f}], +{union.gained} -{union.lost}")
    return {
        "text": f"| {report.model}, {report.threat} | {' | '.join(columns)} | {report.verdict} |",
        "model": report.model,
        **shares,
        "difference": [union.difference, *union.interval],
        "non_adaptive_difference": [report.non_adaptive.difference, *report.non_adaptive.interval],
        "early_stopped": [report.base_early_stopped, report.candidate_early_stopped],
        "verdict": report.verdict,
        "images_needed": report.images_needed,
        "failed_checks": list(report.failed_checks),
        "seconds": report.seconds,
    }


if __name__ == "__main__":
    main()
