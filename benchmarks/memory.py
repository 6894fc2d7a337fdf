"""Memory of an evaluation over many images of ImageNet's size, as in docs/scaling.md (with 1,000 images).

    python benchmarks/memory.py [--images 50000] [--size 224] [--run DIR]

The images are those of CIFAR-10, enlarged to 224 x 224 when they are read; the model averages its input back to
32 x 32 and is cifar10-resnet from there on. Ten times, evenly spread, it prints how much memory the process has. An
interrupted run resumes with --run. The last line is JSON; it is also written to benchmarks/results/memory.json.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import lipforge as lf
from lipforge.data import DataSet
from lipforge.records import write_json

RESULTS = Path(__file__).parent / "results" / "memory.json"
PAGE = 4096 / 2**20  # of Linux, in MB


class Enlarged:
    """Images of another set, enlarged when they are read; it notes the process's memory on the way."""

    def __init__(self, data: DataSet, size: int, count: int) -> None:
        self.data, self.size, self.count = data, size, count
        self.name, self.classes = f"{data.name} at {size}", data.classes
        self.memory: dict[int, float] = {}

    def __len__(self) -> int:
        return self.count

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        tenth = indices[0] * 10 // self.count
        if len(indices) > 1 and indices[1] == indices[0] + 1 and tenth not in self.memory:
            self.memory[tenth] = resident()
            print(f"{indices[0]:,} of {self.count:,} images: {self.memory[tenth]:.0f} MB", flush=True)
        x, y = self.data.batch([index % len(self.data) for index in indices])
        return nn.functional.interpolate(x, size=self.size, mode="bilinear"), y

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        for first in range(0, self.count, batch_size):
            yield self.batch(range(first, min(first + batch_size, self.count)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--attack", default="fgsm")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--run", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = Enlarged(lf.load_data("cifar10:train"), options.size, options.images)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(32), lf.load_model("cifar10-resnet")).eval()
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder, lf.RunDir.open(options.run or Path(folder)) as run:
        found = lf.evaluate(model, data, options.attack, lf.Threat("linf", "8/255"), run=run, show_progress=False)
    result = {
        "images": options.images,
        "size": options.size,
        "attack": found.attack,
        "megabytes": [round(data.memory[tenth]) for tenth in sorted(data.memory)],
        "robust": found.robust_accuracy,
        "cpu_seconds": time.process_time() - started,
    }
    write_json(RESULTS, result)
    print(json.dumps(result))


def resident() -> float:
    """The process's memory, in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


if __name__ == "__main__":
    main()
