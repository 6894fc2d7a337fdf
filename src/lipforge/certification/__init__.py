"""Certified accuracy by randomized smoothing; knows nothing of forging or attacks."""

from lipforge.certification.pilot import NoisePilot, noise_pilot
from lipforge.certification.smoothing import BATCH_SIZE, Smoothing, certify, certify_cost, radius_of, task_name
