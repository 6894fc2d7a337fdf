"""Training from start to end: `train` does a run, resumes it after a kill, and leaves the weights in a file.

Training on one-step attacks can collapse within an epoch (catastrophic overfitting): the model hides its gradient from
the single step and loses all robustness against several. So a probe attacks held-out training images with ten steps
after each epoch. Where its accuracy falls below half of the best so far, and by more than 5 points, training returns
to the last good epoch and takes steps three quarters as large from there on.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from lipforge import rng
from lipforge.attacks.pgd import PGD
from lipforge.attacks.queries import is_misclassified
from lipforge.batching import BATCH_SIZE, LabelledSource, as_data, device_of
from lipforge.errors import TrainingError
from lipforge.progress import Step, progress
from lipforge.ranks import process_group
from lipforge.records import write_whole
from lipforge.results import Change
from lipforge.runs import change_of
from lipforge.tracking import track
from lipforge.training.config import TrainConfig
from lipforge.training.objectives import eval_mode
from lipforge.training.session import GOOD, WEIGHTS, Session, open_session, restore_, save
from lipforge.training.step import agree, optimize_
from lipforge.types import Threat

PROBE = PGD(steps=10)
SHRINK = 0.75
MOST_ROLLBACKS = 3


@dataclass(frozen=True)
class TrainResult:
    """The outcome of training; accuracies are on the held-out training images, `log` has one entry per epoch."""

    weights: Path
    epochs: int
    seconds: float
    clean_accuracy: float
    pgd_accuracy: float
    rollbacks: int
    log: tuple[dict[str, Any], ...]
    change: Change | None = None


class Accuracy(NamedTuple):
    """Shares of the held-out images: classified correctly, and still so under the probe."""

    clean: float
    pgd: float


def train(
    model: nn.Module,
    data: LabelledSource,
    config: TrainConfig,
    *,
    out: str | Path,
    checkpoint_seconds: float = 180.0,
    show_progress: bool | None = None,
) -> TrainResult:
    """Train `model` in place and write its final weights to `out`; the same call again resumes where it stopped.

    The state is written after every epoch and every `checkpoint_seconds`. A run resumed on the same kind of machine
    ends with the same weights, bit for bit, as one that was not killed (on CUDA with deterministic algorithms only).
    A forged model is trained in its mode. Under torchrun the processes share each batch, and must all see `out`.
    """
    with process_group(device_of(model)) as rank:
        session = open_session(model, as_data(data), config, Path(out), rank)
        total = config.epochs * session.batches
        with progress(f"training ({config.method})", total, done=session.steps, show=show_progress) as step:
            while session.position.epoch < config.epochs:
                _run_epoch(session, checkpoint_seconds, step)
                _end_epoch(session)
        return _finish(session)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside the block torch's global generator starts from `seed`, for initialising a model; it is put back after."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def probe(model: nn.Module, images: Tensor, labels: Tensor, *, threat: Threat, seed: int) -> Accuracy:
    """Clean and PGD-10 accuracy in eval mode; only correctly classified images are attacked."""
    clean = robust = 0
    with eval_mode(model):
        for first in range(0, len(images), BATCH_SIZE):
            x, y = images[first : first + BATCH_SIZE], labels[first : first + BATCH_SIZE]
            right = ~is_misclassified(model, x, y)
            x, y, ids = x[right], y[right], first + right.nonzero().flatten()
            x_adv = PROBE(model, x, y, threat=threat, seed=seed, sample_ids=ids)
            clean += len(x)
            robust += int((~is_misclassified(model, x_adv, y)).sum()) if len(x) else 0
    return Accuracy(clean / len(images), robust / len(images))


def has_collapsed(pgd: float, best: float) -> bool:
    """Whether PGD accuracy dropped so far below `best` that it cannot be chance.

    >>> has_collapsed(0.02, best=0.35), has_collapsed(0.30, best=0.35), has_collapsed(0.0, best=0.04)
    (True, False, False)
    """
    return pgd < best / 2 and best - pgd > 0.05


def _run_epoch(session: Session, checkpoint_seconds: float, step: Step) -> None:
    config, position = session.config, session.position
    order = rng.permutation(config.seed, len(session.train_ids), stream="order", counter=position.epoch)
    chunks = torch.split(session.train_ids[order], config.batch_size)
    own = session.rank.share(config.batch_size)
    session.model.train()
    clock = saved = time.monotonic()
    for batch in range(position.batch, session.batches):
        loss, right = optimize_(session, chunks[batch][own])
        position.batch, position.loss_sum, position.right = batch + 1, position.loss_sum + loss, position.right + right
        position.seconds, clock = position.seconds + time.monotonic() - clock, time.monotonic()
        step(1, f"epoch {position.epoch + 1}/{config.epochs} loss {position.loss_sum / position.batch:.3f}")
        if clock - saved > checkpoint_seconds:
            save(session)
            saved = time.monotonic()


def _end_epoch(session: Session) -> None:
    """Probe, log, and keep the state as good; or go back to the last good one if the model collapsed."""
    config, position = session.config, session.position
    started = time.monotonic()
    current = _probe(session, session.model)
    final = current if session.average is None else _probe(session, session.average)
    entry = {
        "event": "epoch",
        "epoch": position.epoch + 1,
        "loss": position.loss_sum / session.batches,
        "train_accuracy": position.right / session.batches,
        "clean_accuracy": final.clean,
        "pgd_accuracy": final.pgd,
        "raw_clean_accuracy": current.clean,
        "raw_pgd_accuracy": current.pgd,
        "lr": session.optimizer.param_groups[0]["lr"],
        "attack_step_size": position.attack_step_size,
    }
    if config.attack_steps and has_collapsed(current.pgd, position.best_pgd):
        _roll_back(session, entry)
        return
    position.best_pgd = max(position.best_pgd, current.pgd)
    position.epoch, position.batch, position.loss_sum, position.right = position.epoch + 1, 0, 0.0, 0.0
    position.seconds += time.monotonic() - started
    position.log.append({**entry, "seconds": round(position.seconds, 3)})
    track("train", entry, step=position.epoch)
    save(session, GOOD)
    save(session)


def _roll_back(session: Session, entry: dict[str, Any]) -> None:
    lost = session.position
    if lost.rollbacks == MOST_ROLLBACKS:
        raise TrainingError(
            f"the model collapsed {MOST_ROLLBACKS + 1} times (PGD accuracy {entry['raw_pgd_accuracy']:.3f} in epoch "
            f"{lost.epoch + 1}); {session.out / GOOD} keeps the last good state. Take pgd-at or a smaller step_size"
        )
    restore_(session, GOOD)
    position = session.position
    position.rollbacks, position.seconds = lost.rollbacks + 1, lost.seconds
    position.attack_step_size = lost.attack_step_size * SHRINK
    position.log = [*lost.log, {**entry, "event": "rollback", "seconds": round(lost.seconds, 3)}]
    save(session)


def _probe(session: Session, model: nn.Module) -> Accuracy:
    images, labels = session.held_out
    accuracy = Accuracy(0.0, 0.0)
    if session.rank.is_first:
        accuracy = probe(model, images, labels, threat=session.config.threat, seed=session.config.seed)
    return Accuracy(*agree(accuracy, images.device))


def _finish(session: Session) -> TrainResult:
    """Write the final weights and leave them in the caller's model, in eval mode."""
    position = session.position
    if session.average is not None:
        session.model.load_state_dict(session.average.state_dict())
    session.model.eval()
    if session.rank.is_first:
        state = {name: tensor.cpu().contiguous() for name, tensor in session.model.state_dict().items()}
        write_whole(session.out / WEIGHTS, to_safetensors(state))
    last = next(entry for entry in reversed(position.log) if entry["event"] == "epoch")
    accuracies = (last["clean_accuracy"], last["pgd_accuracy"])
    path, log = session.out / WEIGHTS, tuple(position.log)
    return TrainResult(
        path, position.epoch, position.seconds, *accuracies, position.rollbacks, log, change_of(session.model)
    )
