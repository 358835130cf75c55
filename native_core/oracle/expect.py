"""`expect(workload, info)`: what an engine must make of a workload, before anything is sent.

It sees neither requests that were sent nor any counter. `replay_observed` is another question, and says so in its
`mode`: what must have happened, given the order in which requests were seen to be sent and to end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from native_core.oracle.load import InfoLike, RequestLike, WorkloadLike, in_flight
from native_core.oracle.ordered import OrderedRequest, OrderedWorkload
from native_core.oracle.prediction import ClassPrediction, Loss, Mode, Prediction, Range
from native_core.oracle.queue_bounds import QueueBounds, lindley
from native_core.oracle.settings import Settings, refusal, settle
from native_core.oracle.sharing import MOST_REQUESTS, Bounds, Contents, bounds, predecessors, shared_tokens
from native_core.oracle.simulate import Outcome, Schedule, simulate
from native_core.virtual import StepTime

MOST_TOKENS = 4_000_000  # simulated in all: larger workloads get fewer schedules, at least three
SPEEDS = (1.0, 1 / 3, 3.0)  # of the parts of a step, beside the model's
TURNAROUNDS = (0.0, 0.2, 2.0)  # of a step's fixed time: the most from an answer's end to what follows it, in rotation


@dataclass(frozen=True)
class _Run:
    real: Outcome
    unlimited: Outcome  # the same schedule with a pool that holds everything


def expect(workload: WorkloadLike, info: InfoLike, *, step_time: StepTime | None = None) -> Prediction:
    """The prediction for a workload on the engine that `info` describes, its cache empty at the start.

    `step_time`: seconds of a step, if they are known; usage over time and queue bounds rest on them, cached tokens
    only where the order of requests does. Raises OracleError for settings that make no engine.
    """
    return predict(workload, info, "expected", step_time or StepTime())


@dataclass(frozen=True)
class Observed:
    """When a request was sent and when its answer had ended, in seconds on one clock."""

    request_id: str
    t_sent: float
    t_done: float


def replay_observed(
    workload: WorkloadLike, info: InfoLike, observed: Sequence[Observed], *, step_time: StepTime | None = None
) -> Prediction:
    """What must have happened, given who was sent when all of whom had ended. Its mode is "observed order".

    Requests go in the order of t_sent, each when all that had ended before it have ended here. Those that are missing
    in `observed` were never sent and are left out. Counters and usage of the run are not looked at.
    """
    rows = {row.request_id: row for row in workload.requests}
    sent = sorted((one for one in observed if one.request_id in rows), key=lambda one: one.t_sent)
    if not sent:
        return Prediction(mode="observed order", refused="none of the workload's requests was observed")
    if len(sent) > MOST_REQUESTS:
        return Prediction(mode="observed order", refused=f"more than {MOST_REQUESTS} requests were observed")
    ended = sorted(sent, key=lambda one: one.t_done)
    places = {one.request_id: index for index, one in enumerate(sent)}
    gone: dict[str, int] = {}  # for each request those that had ended when it was sent, as bits
    ordered: list[RequestLike] = []
    for one in sent:
        after: list[str] = []
        covered = 0
        for other in reversed(ended[: bisect_left(ended, one.t_sent, key=lambda other: other.t_done)]):
            bit = 1 << places[other.request_id]
            if not covered & bit:  # those that `other` waited for need no mention
                after.append(other.request_id)
                covered |= bit | gone[other.request_id]
        gone[one.request_id] = covered
        ordered.append(OrderedRequest.of(rows[one.request_id], tuple(after)))
    return predict(
        OrderedWorkload(ordered, workload.segments, workload.vocab_size),
        info,
        "observed order",
        step_time or StepTime(),
    )


def predict(workload: WorkloadLike, info: InfoLike, mode: Mode, step_time: StepTime) -> Prediction:
    """Common to both modes; they differ in the workload's order alone."""
    why_not = refusal(workload, info)
    if why_not is not None:
        return Prediction(mode=mode, refused=why_not)
    lengths = _lengths(workload)
    block = info.block_size or 1
    everything = sum(-(-size // block) for size in lengths)
    settings = settle(info, longest=max(lengths), footprint=everything)
    schedules = _schedules(step_time, sum(lengths))
    first = simulate(workload, settings.config, schedules[0])
    contents = Contents.of(workload, first.prompts, first.answers)
    limits = bounds(contents, predecessors(workload, first.finished), block)
    fits = limits.footprint < settings.config.num_blocks
    others = [simulate(workload, settings.config, schedule) for schedule in schedules[1:]]
    runs = [
        _Run(real, real if fits else simulate(workload, settings.with_blocks(everything), schedule))
        for real, schedule in zip([first, *others], schedules, strict=True)
    ]
    exact, why = _certainty(workload, settings, limits, fits)
    if exact:
        _check(settings, limits, fits, runs)
    queue, queue_refused = _queue(workload, settings, limits, step_time)
    ceiling, losses = _losses(workload, contents, settings, runs)
    off = not settings.config.prefix_caching
    return Prediction(
        mode=mode,
        exact=exact,
        why=why,
        grade=settings.grade,
        profile=settings.config.profile,
        block_size=block,
        kv_tokens=info.kv_tokens,
        schedules=len(runs),
        total=_class("all", workload, runs, None),
        classes=[_class(name, workload, runs, name) for name in dict.fromkeys(_names(workload))],
        at_most=0 if off else limits.at_most,
        at_least=sum(limits.low) if fits and not settings.unlimited and not off else 0,
        ceiling=ceiling,
        losses=losses,
        preemptions=Range.over(run.real.preemptions for run in runs),
        peak_usage=Range.over(run.real.peak_usage for run in runs),
        mean_usage=Range.over(run.real.mean_usage for run in runs),
        queue=queue,
        queue_refused=queue_refused,
        assumed=settings.assumed,
        step_time=asdict(step_time),
    )


def _lengths(workload: WorkloadLike) -> list[int]:
    """Tokens of prompt and answer, answers at their max_tokens."""
    answers = {row.request_id: row.max_tokens for row in workload.requests}
    segments = workload.segments
    return [
        sum(len(segments[part]) if isinstance(part, str) else answers[part.request_id] for part in row.prompt)
        + row.max_tokens
        for row in workload.requests
    ]


def _schedules(model: StepTime, tokens: int) -> list[Schedule]:
    """The model's own, then engines whose steps and whose prefills are each slower or faster."""
    count = max(3, min(len(SPEEDS) ** 2, MOST_TOKENS // max(tokens, 1)))
    # The corners before the edges, so that a few schedules already span what all of them do.
    pairs = sorted(
        ((fixed, prefill) for fixed in SPEEDS for prefill in SPEEDS), key=lambda pair: (1.0 in pair, pair[0] != pair[1])
    )
    pairs.remove((1.0, 1.0))
    chosen = [(1.0, 1.0), *pairs][:count]
    return [
        Schedule(
            replace(
                model,
                fixed=model.fixed * fixed,
                per_sequence=model.per_sequence * fixed,
                per_context_token=model.per_context_token * fixed,
                per_prefill_token=model.per_prefill_token * prefill,
            ),
            TURNAROUNDS[at % len(TURNAROUNDS)] * model.fixed * fixed,
            seed=at,
        )
        for at, (fixed, prefill) in enumerate(chosen)
    ]


def _certainty(workload: WorkloadLike, settings: Settings, limits: Bounds, fits: bool) -> tuple[bool, str]:
    """Whether cached tokens follow from the workload and the settings alone, and why."""
    if not settings.config.prefix_caching:
        return True, "prefix caching is off"
    if not any(limits.high):
        return True, "no request shares a full block with another"
    if not all(row.ignore_eos for row in workload.requests):
        return False, "answers may stop before max_tokens, and what they leave in the cache is not known"
    if settings.unlimited:
        return False, "the engine does not say how large its cache is, so evictions cannot be ruled out"
    if limits.in_turn:
        return True, "each request is sent when all before it have ended"
    if limits.low != limits.high:
        loose = sum(low != high for low, high in zip(limits.low, limits.high, strict=True))
        return False, f"{loose} requests may run beside those that they share with, and who comes first is not known"
    if not fits:
        needed, usable = limits.footprint, settings.config.num_blocks - 1
        return False, f"requests need up to {needed} blocks and the cache has {usable}: what is evicted depends on time"
    return True, "whatever is shared was computed before it is asked for, and everything fits: no order changes it"


def _check(settings: Settings, limits: Bounds, fits: bool, runs: Sequence[_Run]) -> None:
    """Two computations of one figure: the scheduler's own, and the bounds from contents. They must not differ."""
    first = runs[0].real.cached
    assert all(run.real.cached == first for run in runs), "schedules disagree where the order is known"
    if fits and settings.config.prefix_caching and limits.low == limits.high:
        assert first == limits.low, "the scheduler's hits are not those that the contents allow"


def _names(workload: WorkloadLike) -> list[str]:
    return [row.cache_class for row in workload.requests]


def _class(name: str, workload: WorkloadLike, runs: Sequence[_Run], only: str | None) -> ClassPrediction:
    chosen = [index for index, row in enumerate(workload.requests) if only is None or row.cache_class == only]
    return ClassPrediction(
        name,
        len(chosen),
        sum(len(runs[0].real.prompts[index]) for index in chosen),
        Range.over(sum(run.real.cached[index] for index in chosen) for run in runs),
    )


def _losses(
    workload: WorkloadLike, contents: Contents, settings: Settings, runs: Sequence[_Run]
) -> tuple[int, list[Loss]]:
    """The ceiling, and where it went: rules of the engine first, then what the schedule and the pool cost."""
    places = {row.request_id: index for index, row in enumerate(workload.requests)}
    shared = shared_tokens(contents, [places[request_id] for request_id in runs[0].unlimited.finished])
    usable = [min(tokens, len(prompt) - 1) for tokens, prompt in zip(shared, contents.prompts, strict=True)]
    block = settings.config.block_size
    paged = sum(tokens // block * block for tokens in usable)
    ceiling = sum(shared)
    if not settings.config.prefix_caching:
        return ceiling, [Loss("caching is off", Range(ceiling, ceiling))]
    last, rounding = ceiling - sum(usable), sum(usable) - paged
    return ceiling, [
        Loss("last-token rule", Range(last, last)),
        Loss("page rounding", Range(rounding, rounding)),
        Loss("order", Range.over(paged - sum(run.unlimited.cached) for run in runs)),
        Loss("capacity", Range.over(sum(run.unlimited.cached) - sum(run.real.cached) for run in runs)),
    ]


def _queue(
    workload: WorkloadLike, settings: Settings, limits: Bounds, step_time: StepTime
) -> tuple[QueueBounds | None, str | None]:
    rows = workload.requests
    if in_flight(workload.load) is not None:
        return None, "arrivals of a closed load follow from its answers"
    if any(row.arrival_s is None or row.after for row in rows):
        return None, "some requests arrive when others have ended"
    if settings.config.policy != "fcfs" or settings.config.long_prefill_threshold:
        return None, "requests may overtake each other under this policy or long-prefill threshold"
    high = limits.high if settings.config.prefix_caching else [0] * len(rows)
    prompts = _prompt_sizes(workload)
    order = sorted(range(len(rows)), key=lambda index: (rows[index].arrival_s, index))
    arrivals = [rows[index].arrival_s or 0.0 for index in order]
    return lindley(
        arrivals, [prompts[index] - high[index] for index in order], step_time, settings.config.max_batched_tokens
    ), None


def _prompt_sizes(workload: WorkloadLike) -> list[int]:
    return [size - row.max_tokens for size, row in zip(_lengths(workload), workload.requests, strict=True)]
