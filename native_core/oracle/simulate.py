"""One schedule: the engine itself under a workload, on a virtual clock. What comes out is a fold over its event log."""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from native_core import events
from native_core.engine import Engine, EngineConfig
from native_core.events import Event
from native_core.executor import SamplingParams
from native_core.oracle.load import Pacing, RequestLike, WorkloadLike
from native_core.request import Request
from native_core.virtual import StepTime, VirtualExecutor

_VOCABULARY = 1 << 30  # where the workload does not say: so large that answers share nothing by chance


@dataclass(frozen=True)
class Schedule:
    """How fast the virtual engine and its clients are."""

    step_time: StepTime = field(default_factory=StepTime)
    turnaround_s: float = 0.0  # at most, from the end of a request to the arrival of one that waited for it
    seed: int = 0

    def turnaround(self, request_id: str) -> float:
        """Seconds, between nothing and the most: the same for the same seed and request, on every machine."""
        return self.turnaround_s * zlib.crc32(f"{self.seed} {request_id}".encode()) / 2**32


@dataclass(frozen=True)
class Outcome:
    """Per request in the workload's order: cached tokens at the first admission, prompt tokens; and the pool's use."""

    cached: list[int]
    prompts: list[tuple[int, ...]]
    answers: dict[str, tuple[int, ...]]
    finished: list[str]  # request ids in the order in which they ended
    preemptions: int
    evicted_tokens: int
    peak_usage: float  # share of the pool that requests own: the greatest of all steps
    mean_usage: float  # the same, weighted by the steps' seconds
    queue_s: list[float]  # arrival to first admission, per request
    ttft_s: list[float]  # arrival to first token
    seconds: float


class _Usage:
    """Folds step events into the peak and the mean share of the pool that requests own."""

    def __init__(self) -> None:
        self.peak = self._area = self._seconds = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, events.Step):
            share = event.used / (event.used + event.evictable + event.free)
            self.peak = max(self.peak, share)
            self._area += share * event.seconds
            self._seconds += event.seconds

    @property
    def mean(self) -> float:
        return self._area / self._seconds if self._seconds else 0.0


def simulate(workload: WorkloadLike, config: EngineConfig, schedule: Schedule | None = None) -> Outcome:
    """Serve every request of a workload, beginning with an empty cache.

    RequestError for a request that the engine would refuse.
    """
    schedule = schedule or Schedule()
    executor = VirtualExecutor(schedule.step_time, vocab_size=workload.vocab_size or _VOCABULARY)
    usage = _Usage()
    engine = Engine(config, executor, usage)
    pacing = Pacing(workload.requests, workload.load)
    live: dict[str, Request] = {}
    answers: dict[str, tuple[int, ...]] = {}
    finished: list[str] = []
    on_their_way: list[tuple[float, str]] = []  # answers that the client has not seen end yet
    while True:
        now = executor.now()
        while on_their_way and on_their_way[0][0] <= now:
            seen, request_id = heapq.heappop(on_their_way)
            pacing.finished(request_id, seen)
        for row, due in pacing.take(now):
            request = _request(row, prompt_ids(workload, row, answers), due)
            live[row.request_id] = request
            engine.add(request)
        if engine.has_work:
            for output in engine.step():
                if output.finished:
                    finished.append(output.request_id)
                    answers[output.request_id] = tuple(live[output.request_id].output_ids)
                    seen = executor.now() + schedule.turnaround(output.request_id)
                    heapq.heappush(on_their_way, (seen, output.request_id))
            continue
        times = [time for time in (pacing.next_due(), on_their_way[0][0] if on_their_way else None) if time is not None]
        if not times:
            break
        executor.wait_until(min(times))
    counters = engine.scheduler.counters
    rows = [live[row.request_id] for row in workload.requests]
    return Outcome(
        cached=[request.cached_tokens or 0 for request in rows],
        prompts=[tuple(request.prompt_ids) for request in rows],
        answers=answers,
        finished=finished,
        preemptions=counters.preemptions,
        evicted_tokens=counters.evicted_tokens,
        peak_usage=usage.peak,
        mean_usage=usage.mean,
        queue_s=[request.queue_seconds or 0.0 for request in rows],
        ttft_s=[(request.t_first_token or 0.0) - (request.arrival or 0.0) for request in rows],
        seconds=executor.now(),
    )


def prompt_ids(workload: WorkloadLike, row: RequestLike, answers: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """A prompt's tokens, with the answers that it contains."""
    ids: list[int] = []
    for part in row.prompt:
        ids.extend(workload.segments[part] if isinstance(part, str) else answers[part.request_id])
    return tuple(ids)


def _request(row: RequestLike, prompt: tuple[int, ...], due: float) -> Request:
    """Greedy requests of one prompt get one answer, as in an engine; sampled ones without a seed get their own."""
    temperature = float(row.sampling.get("temperature", 0.0))
    seed = row.sampling.get("seed")
    return Request(
        row.request_id,
        prompt,
        row.max_tokens,
        SamplingParams(
            temperature=temperature, seed=zlib.crc32(row.request_id.encode()) if seed is None else int(seed)
        ),
        ignore_eos=True,  # lengths are those of max_tokens; expect() says so where a request may stop before
        priority=row.priority or 0,
        arrival=due or None,
        salt=row.adapter,  # an adapter's blocks are its own, as if salted (V2)
    )
