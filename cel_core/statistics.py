"""Is a difference between two accuracies on the same examples more than chance?

Fixes are examples the intact model gets wrong and the ablated one right; harms the reverse; both models are measured on the
same `n` examples, so only these two counts carry information.
"""

import math
from typing import NamedTuple

from scipy.stats import binomtest, norm


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


def gain(fixes: int, harms: int, n: int) -> float:
    """Accuracy without the heads minus intact accuracy, as a fraction."""
    return (fixes - harms) / n


def relative_error_reduction(gain: float, intact_accuracy: float) -> float:
    """The part of the intact model's errors that is gone: gain / (1 - intact accuracy); NaN where it made none."""
    return gain / (1 - intact_accuracy) if intact_accuracy < 1 else math.nan


def mcnemar_p(fixes: int, harms: int) -> float:
    """Two-sided exact McNemar test: under the null, each flip is as likely a fix as a harm."""
    flips = fixes + harms
    return float(binomtest(fixes, flips, 0.5).pvalue) if flips else 1.0


def gain_interval(fixes: int, harms: int, n: int, confidence: float = 0.95) -> Interval:
    """Confidence interval of the gain for paired proportions, after Bonett and Price (2012).

    A Wald interval on counts with one fix and one harm added, which keeps its coverage for few flips and small n.
    """
    z = float(norm.ppf(0.5 + confidence / 2))
    fixed, harmed = (fixes + 1) / (n + 2), (harms + 1) / (n + 2)
    half = z * math.sqrt((fixed + harmed - (fixed - harmed) ** 2) / (n + 2))
    return Interval(max(-1.0, fixed - harmed - half), min(1.0, fixed - harmed + half))
