"""Common corruptions: the 15 of CIFAR-10-C and ImageNet-C, read from their files or made on the fly."""

from lipforge.corruptions.made import corrupt_images
from lipforge.corruptions.run import corrupt, corrupt_name, corrupted_pair_name
from lipforge.corruptions.settings import (
    CORRUPTIONS,
    DEPARTURES,
    SEVERITIES,
    check_corruptions,
    check_severities,
    parameters_for,
)
