"""Standard and adversarial training that can be killed and resumed: it makes the bundled models."""

from lipforge.training.config import TrainConfig
from lipforge.training.run import TrainResult, seeded, train
