"""What requests must wait at least, whatever the cache does: the Lindley recursion over the prompts' own work.

Under first come, first served without a cap on long prefills, a prompt token is computed only when all tokens of the
prompts that arrived before it are computed, or in the same step. A step computes at most `budget` tokens, and
a last chunk of a single token costs no more than a decode, so n uncached tokens take at least

    S = (n - 1) · per_prefill_token + n · fixed / budget

and the first token of request i comes no earlier than L(i) = max(A(i), L(i-1)) + S(i) (Lindley, 1952, for one server).
Its admission may come up to a step of budget - 1 tokens earlier than L(i-1). A measured TTFT below the bound is an
error of a clock, of a client or of the step times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from native_core.virtual import StepTime


@dataclass(frozen=True)
class QueueBounds:
    """Least possible times in seconds, given the step model."""

    mean_ttft_s: float
    max_ttft_s: float
    mean_wait_s: float  # arrival to admission
    max_wait_s: float
    # Work of all prompts / time from the first to the last arrival: above 1 the queue grows. None: all came at once.
    utilisation: float | None


@dataclass(frozen=True)
class LeastTimes:
    """Of one request, in seconds."""

    wait_s: float
    ttft_s: float


def least_times(
    arrivals: Sequence[float], uncached: Sequence[int], step: StepTime, budget: int
) -> tuple[list[LeastTimes], float]:
    """For requests in order of arrival: `uncached` prompt tokens of each at the most that could be cached, above 0.
    With them the work of all in seconds."""
    share = step.fixed / budget
    in_a_step = (budget - 1) * (step.per_prefill_token + share)
    done = work = 0.0
    times: list[LeastTimes] = []
    for arrival, tokens in zip(arrivals, uncached, strict=True):
        service = (tokens - 1) * step.per_prefill_token + tokens * share
        wait = max(0.0, done - arrival - in_a_step)
        done = max(done, arrival) + service
        work += service
        times.append(LeastTimes(wait, done - arrival))
    return times, work


def lindley(arrivals: Sequence[float], uncached: Sequence[int], step: StepTime, budget: int) -> QueueBounds:
    """The least times of a whole load; `arrivals` in seconds, ascending."""
    times, work = least_times(arrivals, uncached, step, budget)
    span = arrivals[-1] - arrivals[0]
    return QueueBounds(
        mean_ttft_s=sum(time.ttft_s for time in times) / len(times),
        max_ttft_s=max(time.ttft_s for time in times),
        mean_wait_s=sum(time.wait_s for time in times) / len(times),
        max_wait_s=max(time.wait_s for time in times),
        utilisation=work / span if span else None,
    )
