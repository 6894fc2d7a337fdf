"""Make a bundled model out of finished training runs: evaluate it on all CIFAR-10 test images and write its card.

python tools/bundle.py NAME --architecture vit:dim=96,depth=5,heads=3 --stage RUN "COMMAND" [--stage RUN "COMMAND" ...]

The weights are those of the last stage. Under torchrun the evaluation is shared; it resumes in --run.
"""

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import torch

import lipforge as lf
from lipforge.attacks import PGD
from lipforge.evaluation import evaluate
from lipforge.models.architectures import BUNDLED, parse_architecture
from lipforge.ranks import process_group
from lipforge.records import read_json, write_json, write_whole
from lipforge.runs import RunDir

ATTACK = PGD(steps=20)


def main() -> None:
    """Evaluate, then write NAME.safetensors and NAME.json into the package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--architecture", required=True)
    parser.add_argument("--stage", nargs=2, action="append", metavar=("RUN", "COMMAND"), required=True)
    parser.add_argument("--run", required=True, help="where the evaluation is kept, to resume it")
    arguments = parser.parse_args()
    weights = Path(arguments.stage[-1][0]) / "weights.safetensors"
    model = lf.load_model(arguments.architecture, weights).to(memory_format=torch.channels_last)
    with process_group(torch.device("cpu")) as rank, RunDir.open(arguments.run) as run:
        result = evaluate(
            model, lf.load_data("cifar10:test"), ATTACK, lf.Threat("linf", "8/255"), run=run, label=arguments.name
        )
    if not rank.is_first:
        return
    write_whole(BUNDLED / f"{arguments.name}.safetensors", weights.read_bytes())
    write_json(BUNDLED / f"{arguments.name}.json", card(arguments, weights, model, result))


def card(arguments: argparse.Namespace, weights: Path, model: torch.nn.Module, result: Any) -> dict[str, Any]:
    """Everything there is to know about the model."""
    architecture, values = parse_architecture(arguments.architecture)
    measured = {"count": result.count, "seed": result.seed}
    return {
        "architecture": architecture,
        "arguments": {**values, "classes": 10},
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "licence": "Apache-2.0",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "data": {
            "name": "cifar10",
            "trained_on": _trained_on(Path(arguments.stage[-1][0])),
            "tested_on": "all 10,000 test images",
        },
        "accuracy": {
            "command": f"lipforge evaluate {arguments.name} --data cifar10:test --attack pgd:steps=20",
            "clean": {**measured, "share": result.clean_accuracy, "interval_95": result.clean_interval},
            "pgd20": {
                **measured,
                "attack": "pgd:steps=20",
                "threat": "linf 8/255",
                "share": result.robust_accuracy,
                "interval_95": result.interval,
            },
        },
        "training": training([Path(run) for run, _ in arguments.stage], [command for _, command in arguments.stage]),
    }


def _trained_on(run: Path) -> str:
    config = read_json(run / "config.json")
    return f"{config['limit'] or '50,000'} training images less {config['holdout']} held out for the probe"


def training(runs: list[Path], commands: list[str]) -> dict[str, Any]:
    """The commands, settings, curve and wall time of the stages."""
    configs = [read_json(run / "config.json") for run in runs]
    logs = [[json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()] for run in runs]
    return {
        "command": commands,
        "stages": [{key: value for key, value in config.items() if key != "model"} for config in configs],
        "seconds": sum(log[-1]["seconds"] for log in logs),
        "machine": "2 CPU cores shared with other work; one thread per process",
        "torch": torch.__version__,
        "rollbacks": sum(entry["event"] == "rollback" for log in logs for entry in log),
        "curve": [{"stage": number, **entry} for number, log in enumerate(logs, start=1) for entry in log],
    }


if __name__ == "__main__":
    main()
