"""Certified accuracy: deterministic bounds of the model itself beside an attack, and randomized smoothing."""

from lipforge.certification.bounds import Bounds, Region, bounds_of, margins
from lipforge.certification.brackets import bracket, bracket_name, comparison_name
from lipforge.certification.network import Network, network_of
from lipforge.certification.pilot import NoisePilot, noise_pilot
from lipforge.certification.smoothing import BATCH_SIZE, Smoothing, certify, certify_cost, radius_of, task_name
