"""log and exp from +, −, × and ÷ alone: the same bits on every machine, which a C library does not promise.

IEEE 754 fixes the result of the four operations and of sqrt; it only recommends one for log and exp, and libraries
differ in the last place. Gaps between arrivals are drawn through these two, so that a seed means one workload.
"""

from __future__ import annotations

import math

_LN2_HIGH = 0.6931471803691238  # 33 bits, so that k × _LN2_HIGH is exact for every exponent k
_LN2_LOW = 1.9082149292705877e-10  # ln 2 − _LN2_HIGH
_LOG_TERMS = 23  # |s| <= 0.1716, so s^(2×23+1) / 47 is below 1e-37
_EXP_TERMS = 20  # |r| <= 0.3466, so r^20 / 20! is below 1e-27


def log(x: float) -> float:
    """Natural logarithm of a finite x > 0: x = m·2^k with m in [√½, √2), ln m = 2·artanh((m − 1) / (m + 1)).

    Raises ValueError for anything else.
    """
    if not 0.0 < x < math.inf:
        raise ValueError(f"log of {x!r}")
    m, k = math.frexp(x)
    if m < 0.7071067811865476:
        m, k = m * 2.0, k - 1
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    total = 0.0
    for i in range(_LOG_TERMS, 0, -1):
        total = (total + 1.0 / (2 * i + 1)) * square
    return k * _LN2_HIGH + (k * _LN2_LOW + 2.0 * (s + s * total))


def exp(x: float) -> float:
    """e to the x, by x = k·ln 2 + r and the Taylor series of e^r. 0.0 below −745; OverflowError above 709."""
    if x < -745.0:
        return 0.0
    if not x <= 709.0:
        raise OverflowError(f"exp of {x!r}")
    k = math.floor(x / (_LN2_HIGH + _LN2_LOW) + 0.5)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    total = 1.0
    for i in range(_EXP_TERMS, 0, -1):
        total = 1.0 + total * r / i
    return math.ldexp(total, k)
