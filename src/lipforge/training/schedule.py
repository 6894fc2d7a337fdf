"""The learning rate and eps at every step, as functions of how far training has come."""

import math

from lipforge.training.config import TrainConfig


def learning_rate(config: TrainConfig, done: float) -> float:
    """The rate when the share `done` of all steps is behind: linear up to `lr`, then down to 0.

    "cyclic" comes down in a line, "cosine" along half a cosine.

    >>> config = TrainConfig(lr=0.2, warmup=0.5)
    >>> [round(learning_rate(config, done), 3) for done in (0.0, 0.25, 0.5, 0.75, 1.0)]
    [0.0, 0.1, 0.2, 0.1, 0.0]
    """
    if done < config.warmup:
        return config.lr * done / config.warmup
    rest = (done - config.warmup) / (1.0 - config.warmup)
    return config.lr * ((1.0 + math.cos(math.pi * rest)) / 2.0 if config.schedule == "cosine" else 1.0 - rest)


def eps_share(config: TrainConfig, epoch: float) -> float:
    """The share of eps in use: 0 during `clean_epochs`, climbing to 1 in a line during `eps_warmup`, then 1.

    >>> config = TrainConfig(clean_epochs=1, eps_warmup=2)
    >>> [eps_share(config, epoch) for epoch in (0.5, 2.0, 3.0, 9.0)]
    [0.0, 0.5, 1.0, 1.0]
    """
    since = epoch - config.clean_epochs
    if since < 0:
        return 0.0
    return min(1.0, since / config.eps_warmup) if config.eps_warmup else 1.0
