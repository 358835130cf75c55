"""What the measured cached tokens mean beside the expected ones, in one word and one sentence."""

from __future__ import annotations

from dataclasses import dataclass

FULL = 0.95  # KV usage at which evictions are plausible even where the engine does not count them

AS_EXPECTED = "as expected"
NO_SHARING = "no sharing in the workload"
BELOW_BLOCK = "sharing below one block"
CACHING_OFF = "caching off"
KEY_MISMATCH = "key mismatch"
EVICTED = "evicted for lack of room"
DISAGREE = "witnesses disagree"
NOT_OBSERVABLE = "not observable"
NO_EXPECTATION = "no expectation"
UNEXPLAINED = "unexplained"


@dataclass(frozen=True)
class Facts:
    """Tokens over the whole cell. None means that it is not known, never zero."""

    requests: int
    prompt_tokens: int
    caching: bool | None
    block_size: int | None
    refused: str | None
    low: int | None
    high: int | None
    certain: int  # what must hit as long as nothing is evicted
    possible: int  # what could have hit if the cache was empty at the start
    longest: int  # longest prefix that any two prompts share, before it is cut to blocks
    footprint: int
    capacity: int | None
    parting: int | None  # where prompts that are alike part
    usage: int | None
    counters: int | None
    queries: int | None
    evicted: float | None
    preempted: float | None
    kv_max: float | None
    unanswered: int  # requests that the engine may have counted and the client has no usage of

    @property
    def measured(self) -> int | None:
        return self.counters if self.usage is None else self.usage

    @property
    def looked_up(self) -> int:
        return self.prompt_tokens if self.queries is None else self.queries


def judge(facts: Facts) -> tuple[str, str]:
    """(verdict, explanation)."""
    measured = facts.measured
    if facts.refused is not None:
        said = "nothing was measured either" if measured is None else f"{measured:,} cached tokens were measured"
        return NO_EXPECTATION, f"no expectation: {facts.refused}; {said}"
    if measured is None:
        return NOT_OBSERVABLE, "neither the answers' usage nor a counter tells cached tokens"
    if facts.usage is not None and facts.counters is not None and facts.usage != facts.counters:
        return _disagree(facts)
    assert facts.low is not None
    assert facts.high is not None
    if facts.caching is False:
        return _caching_off(measured)
    if measured == 0 and facts.possible == 0:
        return _nothing_to_hit(facts)
    if measured < facts.certain:
        return _too_few(facts, measured)
    if measured > facts.high:
        return UNEXPLAINED, (
            f"{measured:,} cached tokens were measured, and nothing sent before could offer more than {facts.high:,}: "
            "the cache held something from before, or the figure is wrong"
        )
    if facts.low == facts.high:
        return (
            AS_EXPECTED,
            f"{measured:,} cached tokens, exactly what {facts.requests} prompts sent in this order share",
        )
    return AS_EXPECTED, f"{measured:,} cached tokens lie within what is possible, {facts.low:,} to {facts.high:,}"


def _caching_off(measured: int) -> tuple[str, str]:
    if measured == 0:
        return CACHING_OFF, "prefix caching is switched off, so nothing can hit"
    return UNEXPLAINED, f"the engine says that prefix caching is off, and yet {measured:,} tokens were cached"


def _disagree(facts: Facts) -> tuple[str, str]:
    usage, counters = facts.usage or 0, facts.counters or 0
    why = (
        f"{facts.unanswered} requests left no usage and may account for it"
        if facts.unanswered and counters > usage
        else "something else used the engine, or one of the two is wrong"
    )
    return DISAGREE, f"usage says {usage:,} cached tokens, the counters say {counters:,}: {why}"


def _nothing_to_hit(facts: Facts) -> tuple[str, str]:
    looked = f"{facts.looked_up:,} tokens were looked up and none matched"
    pressure = _pressure(facts)
    state = "caching is on" if facts.caching else "whether caching is on is not known"
    if facts.parting is not None:
        return KEY_MISMATCH, f"{state}, {looked}{pressure}: the keys differ, at token {facts.parting}"
    if facts.longest == 0:
        return NO_SHARING, f"{state}, {looked}{pressure}: no two prompts begin with the same token"
    return BELOW_BLOCK, (
        f"{state}, {looked}{pressure}: prompts share at most {facts.longest:,} tokens and a hit needs a whole block "
        f"of {facts.block_size:,} with a token to spare"
    )


def _pressure(facts: Facts) -> str:
    """ ", with no eviction pressure" where that is known, else what is known."""
    if facts.capacity is not None and facts.footprint <= facts.capacity:
        return ", with no eviction pressure"
    if facts.evicted == 0:
        return ", and nothing was evicted"
    return ""


def _too_few(facts: Facts, measured: int) -> tuple[str, str]:
    lost = f"{facts.certain:,} tokens were in the cache at some time and {measured:,} hit"
    if facts.queries == 0:
        return CACHING_OFF, f"{lost}: the engine looked up no token at all, so caching is off in effect"
    signs = []
    if facts.capacity is not None and facts.footprint > facts.capacity:
        signs.append(f"the prompts and answers need {facts.footprint:,} tokens, the cache holds {facts.capacity:,}")
    if facts.evicted:
        signs.append(f"{facts.evicted:,.0f} tokens were evicted")
    if facts.preempted:
        signs.append(f"{facts.preempted:,.0f} requests were preempted")
    if facts.kv_max is not None and facts.kv_max >= FULL:
        signs.append(f"KV usage reached {facts.kv_max:.0%}")
    if signs:
        return EVICTED, f"{lost}: " + ", ".join(signs)
    if measured == 0 and facts.looked_up:
        return KEY_MISMATCH, (
            f"{lost}, though {facts.looked_up:,} tokens were looked up and the cache was not full: the engine's keys "
            "differ although the tokens are the same (a salt, an adapter, or a mode that keeps no prefixes)"
        )
    return UNEXPLAINED, f"{lost}, and no sign of eviction or preemption explains the rest"
