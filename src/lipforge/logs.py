"""What lipforge has to say besides its results, through the logger "lipforge" of the standard library.

It is silent until someone listens, as with `logging.basicConfig(level=logging.INFO)`: warnings are logged besides being
raised by `warnings`, and what is resumed, written, calibrated or fetched is logged as information.
"""

import logging
import warnings

logger = logging.getLogger("lipforge")
logger.addHandler(logging.NullHandler())  # without any handler, Python would print warnings a second time


def warn(text: str, kind: type[Warning] = UserWarning, *, stacklevel: int = 2) -> None:
    """A warning, which is logged too; `stacklevel` is that of `warnings.warn` in the caller."""
    logger.warning(text)
    warnings.warn(text, kind, stacklevel=stacklevel + 1)
