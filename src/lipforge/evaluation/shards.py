"""One shard of an evaluation: some images, attacked; the same numbers whoever computes it."""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from lipforge.attacks import Attack, notes_and_square
from lipforge.attacks.trial import MISCLASSIFIED
from lipforge.batching import ImageData, check_images
from lipforge.evaluation.results import merge_stages
from lipforge.evaluation.watch import Watch
from lipforge.records import to_plain, write_whole
from lipforge.runs import Task
from lipforge.types import Classifier, Threat

SUMS = ("right", "forwards", "backwards", "seconds")
LISTS = ("outcome", "given_up", "notes")


@dataclass(frozen=True)
class Job:
    """All it takes to compute any shard."""

    classifier: Classifier
    data: ImageData
    attack: Attack
    threat: Threat
    seed: int
    batch_size: int
    device: torch.device | None

    def shard(self, images: range, watch: Watch, keep: Task | None = None) -> dict[str, Any]:
        """What became of these images, batch by batch; with `keep` their adversarial images go beside the shard."""
        starts = range(0, len(images), self.batch_size)
        parts, adversarial = zip(*(self._batch(images[at : at + self.batch_size], watch) for at in starts), strict=True)
        kept = {}
        if keep is not None:
            content = save({"images": torch.cat(adversarial)})
            write_whole(images_path(keep, images), content)
            kept["images"] = hashlib.sha256(content).hexdigest()
        return {
            **kept,
            "first": images.start,
            "count": len(images),
            **{name: sum(part[name] for part in parts) for name in SUMS},
            **{name: [item for part in parts for item in part[name]] for name in LISTS},
            "stages": to_plain(merge_stages(parts)),
        }

    def _batch(self, at: range, watch: Watch) -> tuple[dict[str, Any], Tensor]:
        """The same for one batch, and its adversarial images."""
        started = time.perf_counter()
        x, y = self.data.batch(list(at))
        check_images(x, first=at.start)
        x, y = (tensor if self.device is None else tensor.to(self.device) for tensor in (x, y))
        ids = torch.tensor(at, device=x.device)
        result = self.attack.run(self.classifier, x, y, threat=self.threat, seed=self.seed, sample_ids=ids, watch=watch)
        right = len(x) - result.outcome.count(MISCLASSIFIED)
        notes, _ = notes_and_square(result)  # the stages keep what Square broke
        part = {
            "right": right,
            "forwards": int(result.forwards.sum()),
            "backwards": int(result.backwards.sum()),
            "seconds": time.perf_counter() - started,
            "outcome": list(result.outcome),
            "given_up": ids[result.given_up].tolist(),
            "notes": notes,
            "stages": to_plain(result.stages),
        }
        return part, result.images.cpu()


def images_path(task: Task, images: range) -> Path:
    """Where the adversarial images of a shard are kept."""
    return task.path(images.start // task.size, ".safetensors")


def has_images(task: Task, images: range, shard: Mapping[str, Any]) -> bool:
    """Whether they are there and the ones that the shard was written with."""
    try:
        content = images_path(task, images).read_bytes()
    except FileNotFoundError:
        return False
    return hashlib.sha256(content).hexdigest() == shard.get("images")
