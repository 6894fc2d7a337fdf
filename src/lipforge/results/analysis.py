"""What an analysis measured, site by site."""

from dataclasses import dataclass
from typing import ClassVar

from lipforge.results.change import Change


@dataclass(frozen=True)
class Spread:
    """A figure over images: its mean, and its largest value."""

    mean: float
    worst: float


@dataclass(frozen=True)
class LayerReport:
    """One site. None where a figure does not apply: no adversarial images, or not a conv or linear layer.

    `bound` and `threshold` are the largest over channels. `max_slope` is the mask's largest derivative and `jump` the
    leap of its output at the threshold: with a jump the site has no Lipschitz constant at all. Of the activations of
    all images, the share `zero_*` is 0 already and `suppressed_*` is not but is changed by the mask; the paper's pruned
    share is their sum.

    `sigma` is the layer's largest singular value, at its real input size, with its relative residual. `ratio_forged`
    is that of the layer without the inputs that an image's mask zeroes (scaled, for a graded mask), over `sigma`.
    `ratio_active` is the same for the plain model, without the inputs that are 0 anyway: what forging adds is the
    difference between the two. Eigenvalues of W^T W have the squares of these ratios. `gershgorin` bounds `sigma` from
    above by row sums, `gershgorin_forged` the masked one. `gain_*` is |out' - out| / |in' - in| in l2 between clean and
    adversarial images; for `gain_forged` the input is taken before the mask, in the forged model.
    """

    name: str
    layer: str
    bound: float
    threshold: float
    max_slope: float
    jump: float
    zero_clean: float | None = None
    zero_adversarial: float | None = None
    suppressed_clean: float | None = None
    suppressed_adversarial: float | None = None
    sigma: float | None = None
    sigma_residual: float | None = None
    ratio_active: Spread | None = None
    ratio_forged: Spread | None = None
    gershgorin: float | None = None
    gershgorin_forged: Spread | None = None
    gain_plain: Spread | None = None
    gain_forged: Spread | None = None


@dataclass(frozen=True)
class ProductBound:
    """The product of the sites' largest singular values (eq. 6), as its decimal logarithm: without masks, and the
    largest that any image's masks leave in the plain (`active`) and in the forged model.

    None of them bounds the network: stem, head, shortcuts, norms and attention are left out, a residual block x + f(x)
    has 1 + L(f) and not L(f), and masks that differ between two inputs are no linear map. They compare masks alone.
    """

    sites: int
    log10_plain: float
    log10_active: float
    log10_forged: float


@dataclass(frozen=True)
class NetworkReport:
    """The whole network from image to logits, in l2.

    `gain_*` is |logits' - logits| / |x' - x| between clean and adversarial images. `jacobian_*` is the largest singular
    value of the Jacobian at the clean images (None with too many classes): the local slope, blind to a mask's jumps.
    """

    gain_plain: Spread | None
    gain_forged: Spread | None
    jacobian_plain: Spread | None
    jacobian_forged: Spread | None


@dataclass(frozen=True)
class Analysis:
    """What forging does inside a model, measured on `images` images, singular values on `spectral_images` of them."""

    kind: ClassVar[str] = "analysis"
    model: str
    data: str
    attack: str
    mask: str
    images: int
    spectral_images: int
    layers: tuple[LayerReport, ...]
    product: ProductBound | None
    network: NetworkReport
    notes: tuple[str, ...]
    change: Change | None = None
