"""Numbers as a reader wants them: percent with one digit, intervals in brackets, ratios as powers of two."""

import math


def percent(share: float) -> str:
    """A share in percent, without the sign.

    >>> percent(0.5625)
    '56.2'
    """
    return f"{100 * share:.1f}"


def points(difference: float) -> str:
    """A difference of shares in percentage points, always with its sign; what rounds to nothing is '+0.0'.

    >>> points(-0.014), points(-0.0001)
    ('-1.4', '+0.0')
    """
    return f"{100 * difference:+.1f}".replace("-0.0", "+0.0")


def ratio_text(ratio: float) -> str:
    """A ratio c_r as people write it.

    >>> ratio_text(2**-7), ratio_text(0.1), ratio_text(0.0)
    ('2^-7', '0.1', '0')
    """
    exponent = -math.log2(ratio) if ratio > 0 else 0.0
    return f"2^-{exponent:.0f}" if exponent > 0 and exponent == round(exponent) else f"{ratio:g}"


def eps_text(eps: float) -> str:
    """A radius in 255ths where it is a whole number of them, to within the rounding of float32.

    >>> eps_text(8 / 255), eps_text(0.5)
    ('8/255', '0.5')
    """
    steps = eps * 255
    return f"{steps:.0f}/255" if 0 < steps < 255 and abs(steps - round(steps)) < 1e-4 else f"{eps:g}"


def number(value: float) -> str:
    """A number in four significant digits, with thousands apart.

    >>> number(1234567.0), number(0.0123456), number(3.0)
    ('1,234,567', '0.01235', '3')
    """
    if value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def slug(name: str) -> str:
    """A name as part of a file name or an element's id: lower case, words joined by hyphens.

    >>> slug("Robust accuracy (linf 8/255)")
    'robust-accuracy-linf-8-255'
    """
    return "-".join("".join(c if c.isascii() and c.isalnum() else " " for c in name.lower()).split()) or "x"
