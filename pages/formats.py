"""Numbers and times as a reader sees them: fractions in percent or points, always one width, with a true minus sign."""

import math
from datetime import UTC, datetime

from cel_core.heads import HeadSet
from cel_core.statistics import Interval

LARGE_N = 2000  # from here on a tenth of a percent is more than one example, so a second decimal says something


def decimals(n: int) -> int:
    """Decimals that `n` examples can carry, of a percentage."""
    return 2 if n >= LARGE_N else 1


def percent(fraction: float, n: int = 0) -> str:
    """A fraction in percent, without the sign: 0.704 is ``70.4``."""
    return "–" if math.isnan(fraction) else f"{100 * fraction:.{decimals(n)}f}".replace("-", "−")


def points(fraction: float, n: int = 0) -> str:
    """A difference of two fractions in percentage points, signed: 0.131 is ``+13.1``."""
    shown = f"{100 * fraction:+.{decimals(n)}f}"
    return shown[1:] if float(shown) == 0 else shown.replace("-", "−")


def interval(found: Interval, n: int = 0) -> str:
    """An interval of differences, in points: ``[10.7, 15.5]``."""
    low, high = (f"{100 * value:.{decimals(n)}f}".replace("-", "−") for value in found)
    return f"[{low}, {high}]"


def nats(value: float) -> str:
    """A margin or log-probability, signed, two decimals; a dash where there is none."""
    return "–" if value is None or math.isnan(value) else f"{value:+.2f}".replace("-", "−")


def p_value(p: float) -> str:
    """A p value with two significant digits: ``0.035``, ``2.1e-22``."""
    return f"{p:.2g}".replace("e-0", "e-").replace("-", "−")


def count(number: int) -> str:
    """A whole number with thousands separated."""
    return f"{number:,}"


def duration(seconds: float) -> str:
    """A span of time in the two units that matter: ``41 min``, ``2 h 5 min``."""
    if seconds < 1:
        return "under 1 s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def size(n_bytes: int) -> str:
    """A size in memory: ``1.2 GB``, ``350 kB``."""
    for unit, length in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= length:
            number = n_bytes / length
            return f"{number:.1f} {unit}" if number < 10 else f"{number:.0f} {unit}"
    return f"{n_bytes} bytes"


def age(moment: datetime) -> str:
    """How long ago, in one unit: ``now``, ``4 min``, ``3 h``, ``12 d``."""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return "now"


def model_name(spec: str) -> str:
    """A model's own name: the last part of a hub id or of a path."""
    return spec.rstrip("/").rsplit("/", 1)[-1] or spec


def heads(head_set: HeadSet) -> str:
    """The heads of a set, for a sentence: ``L2H0, L2H6``."""
    return ", ".join(map(str, head_set)) or "none"
