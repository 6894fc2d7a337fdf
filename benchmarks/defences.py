"""Broken defences (tests/defences.py) against `fast`: who looks robust, and who is.

    python benchmarks/defences.py [--images 40] [--first 1000] [--bases cifar10-resnet] [--defences decoy,softmax]

Images are those of CIFAR-10's test set from --first on. "Truth" counts the images that are robust to transfer from the
base, to attacks through gradients that get past the defence, and to `fast`; for random defences it is about the mean
logits of 16 draws. Each finished row is kept in --results: interrupted runs resume. The last line is JSON.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from peers import load_any
from torch import Tensor, nn

import lipforge as lf
from lipforge.records import write_json

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.defences import DEFENCES, Defence, correct, true_robust

RESULTS = Path(__file__).parent / "results" / "defences"
BASES = ("cifar10-resnet-natural", "cifar10-resnet")
COLUMNS = ("defence", "base", "clean", "truth", "fast", "notes of fast", "audit", "seconds of truth, fast, audit")


def main() -> None:
    options = parse_options()
    torch.set_num_threads(options.threads)
    x, y = lf.load_data("cifar10:test").batch(range(options.first, options.first + options.images))
    options.results.mkdir(parents=True, exist_ok=True)
    against = load_any(options.audit, options.weights_dir) if options.audit else None
    rows = []
    for name in options.bases.split(","):
        base = lf.load_model(name)
        for defence in DEFENCES:
            if not options.defences or defence.name in options.defences.split(","):
                eps = options.eps.replace("/", "over")
                audited = f"-against-{options.audit}" if options.audit else ""
                kept = f"{name}-{defence.name.replace('/', 'over')}-{options.first}-{len(x)}-{eps}{audited}.json"
                if not (file := options.results / kept).exists():
                    found = measure(defence, base, x, y, lf.Threat("linf", options.eps), against)
                    write_json(file, {"defence": defence.name, "base": name, **found})
                rows.append(json.loads(file.read_text()))
                print(line(rows[-1]), flush=True)
    print(f"\n| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    print("\n".join(map(line, rows)))
    print(json.dumps(rows))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--first", type=int, default=1000, help="the position of the first image")
    parser.add_argument("--bases", default=",".join(BASES), help="names of models, separated by commas")
    parser.add_argument("--defences", default="", help="names, separated by commas; all by default")
    parser.add_argument("--eps", default="8/255", help="radius of the linf ball")
    parser.add_argument(
        "--audit", metavar="BASE", help="also audit each defence against this model, and show the verdict"
    )
    parser.add_argument("--weights-dir", type=Path, help="a folder with the weights of BASE, if it is not bundled")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def measure(
    defence: Defence, base: nn.Module, x: Tensor, y: Tensor, threat: lf.Threat, against: nn.Module | None
) -> dict[str, Any]:
    """One row: counts out of `count` images, the kinds of `fast`'s notes, the verdict against a model, and seconds."""
    defended, started = defence.build(base), time.perf_counter()
    fast = lf.evaluate(defended, (x, y), lf.fast(), threat, show_progress=False)
    between = time.perf_counter()
    truth = true_robust(defence, base, defended, x, y, threat, own=torch.tensor(fast.robust))
    after = time.perf_counter()
    return {
        "count": len(x),
        "base_clean": int(correct(base, x, y).sum()),
        "clean": int(correct(defence.judge(defended), x, y).sum()),
        "truth": int(truth.sum()),
        "fast": sum(fast.robust),
        "notes": [note.kind for note in fast.notes],
        "unreliable": fast.unreliable,
        "random": defence.random,
        "audit": verdict(against, defended, x, y, threat) if against is not None else "",
        "seconds": [after - between, between - started, time.perf_counter() - after],
    }


def verdict(against: nn.Module, defended: nn.Module, x: Tensor, y: Tensor, threat: lf.Threat) -> str:
    """The audit's verdict with its difference in points, or that it refused to judge."""
    try:
        report = lf.audit(against, defended, (x, y), threat, show_progress=False)
    except lf.LipforgeError as error:
        return f"refused: {str(error)[:40]}"
    return f"{report.verdict} ({report.rows[-1].base} to {report.rows[-1].candidate})"


def line(row: dict[str, Any]) -> str:
    """The row of the table; "unreliable" stands among the notes if `fast` says so."""
    notes = ", ".join(dict.fromkeys([*(["unreliable"] if row["unreliable"] else []), *row["notes"]]))
    seconds = ", ".join(f"{part:.0f}" for part in row["seconds"])
    cells = (row["defence"], row["base"], row["clean"], row["truth"], row["fast"], notes, row["audit"], seconds)
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
