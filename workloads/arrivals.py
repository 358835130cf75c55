"""When requests are meant to arrive: gaps are drawn and summed, never stretched to fit a total.

Stretching (as some tools do) fixes the last arrival and so makes a process that is no longer Poisson. Here a constant
or random process at `rate` delivers `rate` only in the long run, as a real one does, and the report states what came.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from workloads.model import Load, WorkloadError
from workloads.params import suggest
from workloads.rng import Stream

# mode -> its parameters. Rates are requests (multi-turn: sessions) per second.
LOADS: Mapping[str, tuple[str, ...]] = {
    "closed": ("in_flight",),
    "constant": ("rate",),
    "poisson": ("rate",),
    "gamma": ("rate", "burstiness"),
    "ramp": ("rate_from", "rate_to", "seconds"),
    "sessions": ("in_flight",),
    "trace": (),
}
CLOSED = frozenset({"closed", "sessions"})
_WHOLE = frozenset({"in_flight"})


def check_load(load: Load, where: str = "load") -> None:
    """Raise WorkloadError unless the mode is known and has exactly its own parameters, each of them above zero."""
    known = LOADS.get(load.mode)
    if known is None:
        raise WorkloadError(f"{where}: unknown mode {load.mode!r}{suggest(load.mode, list(LOADS))}")
    for key, value in load.params.items():
        if key not in known:
            other = f"; {key!r} belongs to {_owners(key)}" if _owners(key) else suggest(key, list(known))
            raise WorkloadError(f"{where}: a {load.mode} load has no {key!r}{other}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf:
            raise WorkloadError(f"{where}: {key} is {value!r}; it must be a number above 0")
        if key in _WHOLE and value != int(value):
            raise WorkloadError(f"{where}: {key} is {value!r}; it must be a whole number")
    missing = [key for key in known if key not in load.params]
    if missing:
        raise WorkloadError(f"{where}: a {load.mode} load needs {', '.join(missing)}")


def _owners(key: str) -> str:
    return ", ".join(mode for mode, keys in LOADS.items() if key in keys)


def arrival_times(load: Load, n: int, stream: Stream) -> list[float] | None:
    """Seconds from the start of the load for n arrivals, whole microseconds, ascending; None for a closed loop.

    The first arrival comes one gap after the start, as in a process that was already running.
    """
    check_load(load)
    if load.mode in CLOSED:
        return None
    if load.mode == "trace":
        raise WorkloadError("load: a trace load carries its own arrival times; it cannot be generated")
    if load.mode == "ramp":
        return [_micro(t) for t in _ramp(load.params, n, stream)]
    gap = _GAPS[load.mode](load.params, stream)
    times, now = [], 0.0
    for _ in range(n):
        now += gap()
        times.append(_micro(now))
    return times


def _constant(params: Mapping[str, float], stream: Stream) -> Callable[[], float]:
    return lambda: 1.0 / params["rate"]


def _poisson(params: Mapping[str, float], stream: Stream) -> Callable[[], float]:
    return lambda: stream.exponential() / params["rate"]


def _gamma(params: Mapping[str, float], stream: Stream) -> Callable[[], float]:
    """Gaps of mean 1 / rate and coefficient of variation 1 / √burstiness: 1 is Poisson, below 1 comes in bursts.
    The parameter is named and means what it does in `vllm bench serve`."""
    shape = params["burstiness"]
    return lambda: stream.gamma(shape) / (shape * params["rate"])


_GAPS = {"constant": _constant, "poisson": _poisson, "gamma": _gamma}


def _ramp(params: Mapping[str, float], n: int, stream: Stream) -> list[float]:
    """A Poisson process whose rate moves in a straight line from rate_from to rate_to, then stays there.

    Unit-rate arrivals are carried through the inverse of the integrated rate L(t) = a·t + b·t²/2 (time change): gaps
    are drawn once. The root is written so that it loses no digits when b is small or negative.
    """
    a, end, seconds = params["rate_from"], params["rate_to"], params["seconds"]
    b = (end - a) / seconds
    at_end = (a + end) / 2.0 * seconds
    times, area = [], 0.0
    for _ in range(n):
        area += stream.exponential()
        if area >= at_end:
            times.append(seconds + (area - at_end) / end)
        else:
            times.append(2.0 * area / (a + math.sqrt(a * a + 2.0 * b * area)))
    return times


def _micro(seconds: float) -> float:
    return round(seconds, 6)
