"""Certified accuracy by randomized smoothing; knows nothing of forging or attacks."""

from lipforge.certify.binomial import lower_bound, radius_of
from lipforge.certify.cost import CertifyCost, certify_cost
from lipforge.certify.results import CertifiedImage, CertifyResult, CurvePoint
from lipforge.certify.smoothing import certify

__all__ = [
    "CertifiedImage",
    "CertifyCost",
    "CertifyResult",
    "CurvePoint",
    "certify",
    "certify_cost",
    "lower_bound",
    "radius_of",
]
