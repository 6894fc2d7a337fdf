"""The one driver of all that takes minutes: an `Experiment` identifies the work, cuts the images into shards, reads,
checks and moves them, hands shards to processes and ranks, shows progress, and writes the result."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from lipforge.batching import ImageData, as_data, check_eval, check_images, device_of
from lipforge.errors import InputError
from lipforge.ranks import is_first
from lipforge.records import lipforge_version
from lipforge.results import ROBUST
from lipforge.runs.identity import data_identity, identified
from lipforge.runs.rundir import RunDir, open_task
from lipforge.runs.tasks import Complete, Task, digest_of
from lipforge.runs.workers import Enough, work
from lipforge.tracking import track, track_result
from lipforge.types import Classifier

SHARD_SIZE = 100  # images per shard unless told otherwise: a divisor of the counts that people evaluate
R = TypeVar("R")


class Shard(NamedTuple):
    """Images (N, C, H, W), labels (N,) and their positions (N,) in the data, checked and on the device."""

    x: Tensor
    y: Tensor
    ids: Tensor

    def at(self, rows: Tensor) -> "Shard":
        """The images at these rows, or where a mask is true."""
        return Shard(self.x[rows], self.y[rows], self.ids[rows])

    def split(self, size: int) -> "list[Shard]":
        return [Shard(*parts) for parts in zip(*(torch.split(tensor, size) for tensor in self), strict=True)]


@dataclass(frozen=True)
class Experiment:
    """Work on one data set; make it with `Experiment.open`. `identity` adds what a resumed call must agree on, and is
    needed in a run for a classifier that is no module."""

    data: ImageData
    device: torch.device | None
    run: RunDir | None = None
    shard_size: int = SHARD_SIZE
    identity: Mapping[str, Any] | None = None
    show_progress: bool | None = None
    _identities: dict[int, tuple[object, dict[str, Any]]] = field(default_factory=dict, repr=False)

    @classmethod
    def open(
        cls,
        data: Any,
        *classifiers: Classifier,
        run: RunDir | None = None,
        shard_size: int = SHARD_SIZE,
        identity: Mapping[str, Any] | None = None,
        device: torch.device | None = None,
        show_progress: bool | None = None,
    ) -> "Experiment":
        """An experiment on `data`, a data set or an (images, labels) pair, on `device` or that of the first module."""
        if shard_size < 1:
            raise InputError(f"shard_size must be at least 1, got {shard_size}")
        modules = [classifier for classifier in classifiers if isinstance(classifier, nn.Module)]
        for module in modules:
            check_eval(module)
        device = device_of(modules[0]) if modules and device is None else device
        return cls(as_data(data), device, run, shard_size, identity, show_progress)

    @property
    def data_digest(self) -> str:
        return digest_of(self._data_identity)

    def model_digest(self, classifier: Classifier) -> str:
        """Identifies a classifier, with what the caller said of it."""
        return digest_of(self._model_identity(classifier))

    def read(self, positions: Sequence[int]) -> Shard:
        """The images at these positions, checked and on the device."""
        x, y = self.data.batch(list(positions))
        check_images(x, first=positions[0])
        device = x.device if self.device is None else self.device
        return Shard(x.to(device), y.to(device), torch.tensor(list(positions), device=device))

    def task(
        self,
        name: str,
        classifiers: Mapping[str, Classifier],
        config: Mapping[str, Any],
        *,
        positions: Sequence[int] | None = None,
        shard_size: int | None = None,
        complete: Complete | None = None,
    ) -> Task:
        """The task of that name on the images at `positions` (all by default); a run refuses it if it differs. What
        identifies it is the version, the classifiers, the data, `config` and the caller's `identity`."""
        identity = {
            "lipforge": lipforge_version(),
            "models": {label: self._model_identity(classifier) for label, classifier in classifiers.items()},
            "data": self._data_identity,
            **config,
        }
        count = len(self.data if positions is None else positions)
        return open_task(self.run, name, identity, count, shard_size or self.shard_size, complete)

    def work(
        self,
        task: Task,
        compute: Callable[[Shard], Mapping[str, Any]],
        *,
        positions: Sequence[int] | None = None,
        title: str = "",
        status: "Watch | None" = None,
        enough: Enough | None = None,
        look_every: int = 1,
    ) -> list[dict[str, Any]]:
        """What `compute` makes of every shard, in order; only what nobody has computed yet is computed. With `enough`
        the shards after the first look that says so are not needed; see `lipforge.runs.workers.work`."""
        chosen = range(len(self.data)) if positions is None else positions
        if status is not None:
            status.task = task.name

        def one(part: range) -> Mapping[str, Any]:
            return compute(self.read(chosen[part.start : part.stop]))

        return work(
            task,
            one,
            title or task.name,
            status=status,
            show_progress=self.show_progress,
            enough=enough,
            look_every=look_every,
        )

    def finish(self, name: str, result: R) -> R:
        """The result, written to the run and to where `log_to` says by the first rank."""
        if self.run is not None and is_first():
            self.run.write_result(name, result)
        track_result(name, result)
        return result

    @functools.cached_property
    def _data_identity(self) -> dict[str, Any]:
        return data_identity(self.data)

    def _model_identity(self, classifier: Classifier) -> dict[str, Any]:
        if id(classifier) not in self._identities:
            found = identified(classifier, self.identity, in_run=self.run is not None)
            self._identities[id(classifier)] = classifier, found  # kept with it, so that no other gets its id
        return self._identities[id(classifier)][1]


Outcomes = Callable[[Mapping[str, Any]], Mapping[str, Sequence[str]]]
"""From a finished shard to the outcomes of its images, one sequence for each name that is shown."""


class Watch:
    """The share of images that are robust so far, by name, and the attack that is running: `str` has both.

    >>> watch = Watch()
    >>> watch.see({"outcome": ["robust", "fgsm"]}); watch("apgd")
    >>> str(watch)
    'robust 50.0 %  apgd'
    """

    def __init__(self, outcomes: Outcomes = lambda shard: {"robust": shard["outcome"]}) -> None:
        self._outcomes = outcomes
        self._seen: dict[str, tuple[int, int]] = {}
        self._attack = ""
        self.task = ""

    def __call__(self, attack: str) -> None:
        """An attack begins."""
        self._attack = attack

    def see(self, shard: Mapping[str, Any]) -> None:
        """A shard is finished, here or elsewhere."""
        for name, words in self._outcomes(shard).items():
            self.add(name, words)

    def add(self, name: str, words: Sequence[str]) -> None:
        robust, count = self._seen.get(name, (0, 0))
        # At once: the thread that draws the bar may look at any time.
        robust, count = self._seen[name] = (robust + words.count(ROBUST), count + len(words))
        if count:
            track(self.task, {name: robust / count}, step=count)

    def __str__(self) -> str:
        seen = [(name, *counts) for name, counts in list(self._seen.items())]
        shares = ", ".join(f"{name} {100 * robust / count:.1f} %" for name, robust, count in seen if count)
        return "  ".join(part for part in (shares, self._attack) if part)
