"""Results and progress in TensorBoard, MLflow or Weights & Biases: `with log_to("tensorboard:runs/tb"): ...`.

The driver of all long work reports here, so no function takes an argument for it. Only the first rank writes.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from importlib import import_module
from typing import Any, Protocol

from lipforge.errors import InputError, LipforgeError, missing_extra, suggest
from lipforge.ranks import is_first
from lipforge.records import to_json


class Tracker(Protocol):
    """Where numbers go: `log` takes those of one moment, `step` images or epochs in; `keep` a whole record, once."""

    def log(self, values: Mapping[str, float], step: int) -> None: ...
    def keep(self, name: str, values: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    def __init__(self, folder: str) -> None:
        if not folder:
            raise InputError("tensorboard needs a folder: tensorboard:DIR")
        self.writer = _imported("torch.utils.tensorboard", "tensorboard").SummaryWriter(folder)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def keep(self, name: str, values: Mapping[str, Any]) -> None:
        self.writer.add_text(name, f"```\n{to_json(values)}```")

    def close(self) -> None:
        self.writer.close()


class MLflow:
    def __init__(self, uri: str) -> None:
        self.mlflow = _imported("mlflow", "mlflow")
        if uri:
            self.mlflow.set_tracking_uri(uri)
        self.mlflow.start_run(nested=self.mlflow.active_run() is not None)  # within a run that the caller has started

    def log(self, values: Mapping[str, float], step: int) -> None:
        # It takes letters, digits and _ - . / and blanks; an attack's name may have = and +.
        self.mlflow.log_metrics({re.sub(r"[^\w./ -]", "-", name): value for name, value in values.items()}, step=step)

    def keep(self, name: str, values: Mapping[str, Any]) -> None:
        self.mlflow.log_dict(dict(values), f"{name}.json")

    def close(self) -> None:
        self.mlflow.end_run()


class WandB:
    def __init__(self, project: str) -> None:
        self.run = _imported("wandb", "wandb").init(project=project or "lipforge")

    def log(self, values: Mapping[str, float], step: int) -> None:
        # Not as its own step, which may never fall: a run measures several classifiers, each from image 0 on.
        self.run.log({**values, "step": step})

    def keep(self, name: str, values: Mapping[str, Any]) -> None:
        # Without the outcome of every image.
        self.run.summary[name] = {key: value for key, value in values.items() if not isinstance(value, list)}

    def close(self) -> None:
        self.run.finish()


TRACKERS: dict[str, Callable[[str], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}

_current: ContextVar[Tracker | None] = ContextVar("tracker", default=None)


@contextmanager
def log_to(target: str | None) -> Iterator[None]:
    """Inside the block results and progress also go to `target`: "tensorboard:DIR", "mlflow[:URI]" or
    "wandb[:PROJECT]". Nothing happens where it is None."""
    if target is None:
        yield
        return
    kind, _, place = target.partition(":")
    if kind not in TRACKERS:
        raise InputError(f"log must be tensorboard:DIR, mlflow[:URI] or wandb[:PROJECT], got {target!r}"
                         f"{suggest(kind, TRACKERS)}")  # fmt: skip
    if not is_first():
        yield
        return
    with redirect_stdout(sys.stderr):  # some greet, and say goodbye; stdout is for results
        tracker = _started(kind, place)
    token = _current.set(tracker)
    try:
        yield
    finally:
        _current.reset(token)
        with redirect_stdout(sys.stderr):
            tracker.close()


def _started(kind: str, place: str) -> Tracker:
    try:
        return TRACKERS[kind](place)
    except LipforgeError:
        raise
    except Exception as error:  # of a server that is not there, a store that is refused, a login that is missing
        raise LipforgeError(f"{kind} did not start: {str(error).partition(chr(10))[0]}") from error


def track(name: str, values: Mapping[str, Any], step: int) -> None:
    """Log the numbers among `values` as NAME/KEY, if someone asked for it."""
    tracker = _current.get()
    if tracker is not None:
        found = {
            f"{name}/{key}": float(value)
            for key, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        tracker.log(found, step)


def track_result(name: str, result: Any) -> None:
    """Log the numbers of a result at its number of images, and keep its record, if someone asked for it."""
    tracker = _current.get()
    if tracker is not None:
        from lipforge.results import record  # which brings SciPy

        values = record(result)
        track(name, values, int(values.get("count", 0)))
        tracker.keep(name, values)


def _imported(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise missing_extra(package, package) from None
