"""Training from start to end: `train` does a run, resumes it after a kill, and leaves the weights in a file."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from lipforge import rng
from lipforge.batching import ImageData, device_of
from lipforge.errors import InputError, TrainingError
from lipforge.pairs import as_data
from lipforge.progress import Step, progress
from lipforge.ranks import Rank, process_group
from lipforge.records import write_whole
from lipforge.training.config import TrainConfig
from lipforge.training.guard import MOST_ROLLBACKS, SHRINK, Accuracy, has_collapsed, probe
from lipforge.training.objectives import eval_mode
from lipforge.training.session import (
    CHECKPOINT,
    GOOD,
    WEIGHTS,
    Position,
    Session,
    claim,
    identity,
    make_average,
    make_optimizer,
    restore_,
    save,
)
from lipforge.training.step import optimize_, placed
from lipforge.training.workers import agree, check_shares, share


@dataclass(frozen=True)
class TrainResult:
    """What training came to; accuracies are on the held-out training images, `log` has one entry per epoch."""

    weights: Path
    epochs: int
    seconds: float
    clean_accuracy: float
    pgd_accuracy: float
    rollbacks: int
    log: tuple[dict[str, Any], ...]


def train(
    model: nn.Module,
    data: ImageData | tuple[Tensor, Tensor],
    config: TrainConfig,
    *,
    out: str | Path,
    checkpoint_seconds: float = 180.0,
    show: bool | None = None,
) -> TrainResult:
    """Train `model` in place and write its final weights to `out`; the same call again resumes where it stopped.

    The state is written whole after every epoch and every `checkpoint_seconds`. A run that was killed and resumed on
    the same kind of machine ends with the same weights, bit for bit, as one that was not (on CUDA only with
    `torch.use_deterministic_algorithms`). A forged model is trained as it is, in the mode of its forges.
    Under torchrun the processes share each batch; `out` must then be visible to all of them.
    """
    data = as_data(data)
    with process_group(device_of(model)) as rank:
        check_shares(config.batch_size, rank)
        session = _open(model, data, config, Path(out), rank)
        total = config.epochs * session.batches
        done = session.position.epoch * session.batches + session.position.batch
        with progress(f"training ({config.method})", total, done=done, show=show) as step:
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


def _open(model: nn.Module, data: ImageData, config: TrainConfig, out: Path, rank: Rank) -> Session:
    """A session at its start, or at the last checkpoint in `out`."""
    order = rng.permutation(config.seed, len(data), stream="holdout")
    train_ids = order[config.holdout :].sort().values[: config.limit]
    if len(train_ids) < config.batch_size:
        raise InputError(
            f"the data must leave at least one batch of {config.batch_size} images after {config.holdout} are held "
            f"out, but {len(train_ids)} of {len(data)} are left; lower batch_size or holdout"
        )
    claim(out, identity(config, model, data, rank), rank)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack this overload
    images, labels = data.batch(order[: config.holdout].tolist())
    held_out = (placed(images, device_of(model)), labels.to(device_of(model)))
    _check_classes(model, held_out[0][:1], data)
    average = make_average(model, config)
    optimizer = make_optimizer(model, config)
    start = Position(attack_step=config.attack_step)
    session = Session(config, model, average, optimizer, data, train_ids, held_out, rank, start, out)
    if (out / CHECKPOINT).exists():
        restore_(session)
    return session


def _check_classes(model: nn.Module, image: Tensor, data: ImageData) -> None:
    with eval_mode(model), torch.no_grad():
        known = model(image).shape[1]
    if data.classes > known:
        raise InputError(f"the data have {data.classes} classes but the model {known}; build it with more (--arch)")


def _run_epoch(session: Session, checkpoint_seconds: float, step: Step) -> None:
    """The batches that are left of the current epoch."""
    config, position = session.config, session.position
    order = rng.permutation(config.seed, len(session.train_ids), stream="order", counter=position.epoch)
    chunks = torch.split(session.train_ids[order], config.batch_size)
    session.model.train()
    clock = saved = time.monotonic()
    for batch in range(position.batch, session.batches):
        loss, right = optimize_(session, share(chunks[batch], session.rank))
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
        "attack_step": position.attack_step,
    }
    if config.attack_steps and has_collapsed(current.pgd, position.best_pgd):
        _roll_back(session, entry)
        return
    position.best_pgd = max(position.best_pgd, current.pgd)
    position.epoch, position.batch, position.loss_sum, position.right = position.epoch + 1, 0, 0.0, 0.0
    position.seconds += time.monotonic() - started
    position.log.append({**entry, "seconds": round(position.seconds, 3)})
    save(session, GOOD)
    save(session)


def _roll_back(session: Session, entry: dict[str, Any]) -> None:
    """Return to the last good epoch with smaller attack steps; the log keeps what happened."""
    lost = session.position
    if lost.rollbacks == MOST_ROLLBACKS:
        raise TrainingError(
            f"the model collapsed {MOST_ROLLBACKS + 1} times (PGD accuracy {entry['raw_pgd_accuracy']:.3f} in epoch "
            f"{lost.epoch + 1}); {session.out / GOOD} keeps the last good state. Take pgd-at or a smaller step"
        )
    restore_(session, GOOD)
    position = session.position
    position.rollbacks, position.seconds = lost.rollbacks + 1, lost.seconds
    position.attack_step = lost.attack_step * SHRINK
    position.log = [*lost.log, {**entry, "event": "rollback", "seconds": round(lost.seconds, 3)}]
    save(session)


def _probe(session: Session, model: nn.Module) -> Accuracy:
    """The first process's probe, known to all."""
    images, labels = session.held_out
    accuracy = Accuracy(0.0, 0.0)
    if session.rank.is_first:
        accuracy = probe(model, images, labels, threat=session.config.threat, seed=session.config.seed)
    return Accuracy(*agree(accuracy, images.device))


def _finish(session: Session) -> TrainResult:
    """Write the final weights and leave them in the caller's model, in eval mode."""
    position = session.position
    session.model.load_state_dict(session.final.state_dict())
    session.model.eval()
    if session.rank.is_first:
        state = {name: tensor.cpu().contiguous() for name, tensor in session.model.state_dict().items()}
        write_whole(session.out / WEIGHTS, to_safetensors(state))
    last = next(entry for entry in reversed(position.log) if entry["event"] == "epoch")
    return TrainResult(
        weights=session.out / WEIGHTS,
        epochs=position.epoch,
        seconds=position.seconds,
        clean_accuracy=last["clean_accuracy"],
        pgd_accuracy=last["pgd_accuracy"],
        rollbacks=position.rollbacks,
        log=tuple(position.log),
    )
