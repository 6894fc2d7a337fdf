"""A training run in memory and on disk: what changes from step to step, saved whole and restored bit for bit."""

import copy
import hashlib
import io
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lipforge import rng
from lipforge.batching import ImageData, device_of
from lipforge.errors import InputError, RunError, first_line
from lipforge.outputs import logits_in
from lipforge.ranks import Rank
from lipforge.records import read_json, to_builtins, write_json, write_whole
from lipforge.runs.identity import data_identity, model_identity
from lipforge.training.config import TrainConfig, check_same
from lipforge.training.objectives import eval_mode, placed

CHECKPOINT, GOOD, CONFIG, LOG, WEIGHTS = "checkpoint.pt", "good.pt", "config.json", "log.jsonl", "weights.safetensors"


@dataclass
class Position:
    """How far training has come: whole epochs, batches of the current one, and what was seen in it."""

    attack_step_size: float
    epoch: int = 0
    batch: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0
    right: float = 0.0
    best_pgd: float = 0.0
    rollbacks: int = 0
    log: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Session:
    config: TrainConfig
    model: nn.Module
    average: nn.Module | None
    optimizer: torch.optim.Optimizer
    data: ImageData
    train_ids: Tensor
    held_out: tuple[Tensor, Tensor]
    rank: Rank
    position: Position
    out: Path

    @property
    def batches(self) -> int:
        """Batches per epoch; the images that do not fill the last one wait for the next epoch's order."""
        return len(self.train_ids) // self.config.batch_size

    @property
    def steps(self) -> int:
        return self.position.epoch * self.batches + self.position.batch


def open_session(model: nn.Module, data: ImageData, config: TrainConfig, out: Path, rank: Rank) -> Session:
    """A session at its start, or at the last checkpoint in `out`."""
    if config.batch_size % rank.count:
        raise InputError(f"batch_size must be a multiple of the {rank.count} processes, got {config.batch_size}")
    order = rng.permutation(config.seed, len(data), stream="holdout")
    train_ids = order[config.holdout :].sort().values[: config.limit]
    if len(train_ids) < config.batch_size:
        raise InputError(
            f"the data must leave at least one batch of {config.batch_size} images after {config.holdout} are held "
            f"out, but {len(train_ids)} of {len(data)} are left; lower batch_size or holdout"
        )
    wanted = identity(config, model, data, rank)
    if (out / CONFIG).exists():
        check_same(read_json(out / CONFIG), json.loads(json.dumps(wanted)), str(out))
    elif rank.is_first:
        write_json(out / CONFIG, wanted)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack this overload
    images, labels = data.batch(order[: config.holdout].tolist())
    held_out = (placed(images, device_of(model)), labels.to(device_of(model)))
    with eval_mode(model), torch.no_grad():
        known = logits_in(model(held_out[0][:1])).shape[1]
    if data.classes > known:
        raise InputError(f"the data have {data.classes} classes but the model {known}; build it with more (--arch)")
    average, optimizer = make_average(model, config), make_optimizer(model, config)
    start = Position(attack_step_size=config.attack_step_size)
    session = Session(config, model, average, optimizer, data, train_ids, held_out, rank, start, out)
    if (out / CHECKPOINT).exists():
        restore_(session)
    return session


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """SGD or AdamW; weight decay acts on matrices and convolutions only, not on biases and norms."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    matrices, others = [w for w in weights if w.ndim > 1], [w for w in weights if w.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr)
    return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)


def make_average(model: nn.Module, config: TrainConfig) -> nn.Module | None:
    """A copy of the model for the weight average, if one is wanted."""
    return copy.deepcopy(model).eval().requires_grad_(False) if config.ema else None


@torch.no_grad()
def update_average_(average: nn.Module, model: nn.Module, decay: float, steps: int) -> None:
    """Move the average towards the model; early on by more, so that it forgets the initial weights."""
    decay = min(decay, (1 + steps) / (10 + steps))
    averages = (*average.parameters(), *average.buffers())
    for mean, tensor in zip(averages, (*model.parameters(), *model.buffers()), strict=True):
        if mean.is_floating_point():
            mean.lerp_(tensor, 1.0 - decay)
        else:
            mean.copy_(tensor)


def identity(config: TrainConfig, model: nn.Module, data: ImageData, rank: Rank) -> dict[str, Any]:
    """Everything a resumed run must share with the recorded one."""
    tensors, start = model.state_dict(), model_identity(model)
    shapes = repr([(name, tuple(tensor.shape)) for name, tensor in tensors.items()])
    numbers = sum(tensor.numel() for tensor in tensors.values())
    return {
        **to_builtins(config),
        "model": f"{len(tensors)} tensors, {numbers} numbers, {hashlib.sha256(shapes.encode()).hexdigest()[:12]}",
        # Mask, ratio and mode of a forged function are no tensors of a checkpoint; the printed form has them.
        "modules": start["printed"][:12],
        "start": start["tensors"][:12],
        "data": data_identity(data),
        "processes": rank.count,
    }


def save(session: Session, name: str = CHECKPOINT) -> None:
    """Write the session's state and its log; only the first process does."""
    if not session.rank.is_first:
        return
    state = {
        "format": 1,
        "model": session.model.state_dict(),
        "average": None if session.average is None else session.average.state_dict(),
        "optimizer": session.optimizer.state_dict(),
        "position": asdict(session.position),
    }
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_whole(session.out / name, buffer.getvalue())
    lines = (json.dumps(entry, allow_nan=False) + "\n" for entry in session.position.log)
    write_whole(session.out / LOG, "".join(lines).encode())


def restore_(session: Session, name: str = CHECKPOINT) -> None:
    path = session.out / name
    try:
        state = torch.load(path, map_location=device_of(session.model), weights_only=True)
        session.model.load_state_dict(state["model"])
        if session.average is not None:
            session.average.load_state_dict(state["average"])
        session.optimizer.load_state_dict(state["optimizer"])
        session.position = Position(**state["position"])
    except Exception as error:  # a damaged pickle raises whatever its broken bytes lead to
        raise RunError(f"{path} cannot be read ({first_line(error)}); delete it to start this run anew") from None
