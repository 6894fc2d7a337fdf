"""Certified and attacked accuracy of small published nets, base and forged, with the time per image.

    python benchmarks/bracket.py --weights-dir DIR --limit 1000 --run runs/bracket

The nets and their sources are in `peers.py`; any model that lipforge knows works too. Interrupted, it resumes.
"""

import argparse
import json
from pathlib import Path

import torch
from peers import load_any

import lipforge as lf
from lipforge.runs import RunDir
from lipforge.types import parse_number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["cnn_a_adv4", "resnet2b_eps2"])
    parser.add_argument("--weights-dir", type=Path)
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--eps", default="2/255")
    parser.add_argument("--ratio", default="2^-7")
    parser.add_argument("--run", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    images, threat = lf.load_data("cifar10:test", limit=given.limit), lf.Threat("linf", given.eps)
    rows = []
    for name in given.models:
        model = load_any(name, given.weights_dir)
        ratio = parse_number(given.ratio, name="ratio")
        lf.forge_(model, lf.load_data("cifar10:train", limit=5000), ratio=ratio)
        run = None if given.run is None else RunDir.open(given.run / name)
        views = {"base": lf.plain(model), "forged": lf.forged(model)}
        found = [lf.bracket(view, images, threat, run=run, label=label) for label, view in views.items()]
        for one in found:
            print(f"{name} {one}; bounds {one.seconds_per_image:.2f} s per image", flush=True)
            rows.append({"model": name, "label": one.label, "clean": one.clean_accuracy,
                         "certified": one.certified_accuracy, "attacked": one.robust_accuracy,
                         "seconds_per_image": one.seconds_per_image})  # fmt: skip
        print(f"{name} {lf.compare_brackets(*found)}", flush=True)
    print(json.dumps({"benchmark": "bracket", "threat": str(threat), "count": given.limit, "rows": rows}))


if __name__ == "__main__":
    main()
