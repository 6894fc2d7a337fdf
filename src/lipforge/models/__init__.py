"""Models that take images in [0, 1] and return logits: own architectures, and those of others by name."""

from lipforge.models.architectures import bundled_names
from lipforge.models.catalogue import Known, Zoo, known_models, zoos
from lipforge.models.leaderboard import (
    LeaderboardEntry,
    check_board,
    leaderboard_of,
    model_info,
    read_model_info,
    why_unofficial,
    write_model_info,
)
from lipforge.models.load import list_models, load_model
from lipforge.models.networks import Normalize, preact_resnet18, resnet, vit, wide_resnet
from lipforge.models.robustbench import carried_masks
from lipforge.models.weights import load_weights_
