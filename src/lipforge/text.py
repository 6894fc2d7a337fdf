"""Numbers as a reader wants them: percent with intervals, ratios as powers of two, seconds as durations."""

import re


def visible(text: str) -> str:
    """Text without anything that steers a terminal: control characters and changes of direction as escapes.

    >>> visible("cat" + chr(27) + "[2J")
    'cat\\\\x1b[2J'
    """
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


# All but tab and new line of C0 and C1, the marks that write text backwards, and halves of surrogate pairs.
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def percent(share: float, digits: int = 1) -> str:
    """A share in percent, without the sign.

    >>> percent(0.5625), percent(0.5625, 2)
    ('56.2', '56.25')
    """
    return f"{100 * share:.{digits}f}"


def points(difference: float) -> str:
    """A difference of shares in percentage points, always with its sign; what rounds to nothing is '+0.0'.

    >>> points(-0.014), points(-0.0001)
    ('-1.4', '+0.0')
    """
    return f"{100 * difference:+.1f}".replace("-0.0", "+0.0")


def share_text(share: float, interval: tuple[float, float], digits: int = 1) -> str:
    """A share in percent with its interval.

    >>> share_text(0.562, (0.531, 0.592))
    '56.2 [53.1, 59.2]'
    """
    low, high = (percent(bound, digits) for bound in interval)
    return f"{percent(share, digits)} [{low}, {high}]"


def points_text(difference: float, interval: tuple[float, float]) -> str:
    """A difference in percentage points with its interval.

    >>> points_text(0.005, (-0.0139, 0.0275))
    '+0.5 [-1.4, +2.8]'
    """
    return f"{points(difference)} [{points(interval[0])}, {points(interval[1])}]"


def ratio_text(ratio: float) -> str:
    """A ratio as people write it.

    >>> ratio_text(2**-7), ratio_text(0.1), ratio_text(0.0)
    ('2^-7', '0.1', '0')
    """
    for exponent in range(1, 21):
        if ratio == 2.0**-exponent:
            return f"2^-{exponent}"
    short = f"{ratio:g}"
    return short if float(short) == ratio else repr(ratio)


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
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 10_000 else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(0.25), duration(12.3), duration(320), duration(9000), duration(1e6)
    ('0.2 s', '12 s', '5.3 min', '2.5 h', '11.6 days')
    """
    for unit, size, most in (("s", 1, 60), ("min", 60, 3600), ("h", 3600, 48 * 3600)):
        if seconds < most:
            return f"{seconds / size:.{0 if unit == 's' and seconds >= 1 else 1}f} {unit}"
    return f"{seconds / 86400:.1f} days"
