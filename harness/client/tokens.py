"""How many output tokens each event carries, by the best witness the stream has.

In this order: ids returned in the event; the engine's running usage; one token an event, when as many events carry an
answer as the final usage counts tokens; otherwise the final count shared out by length of text. A stream that says
nothing of tokens leaves them unknown: events are not tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.engines.protocol import Delta, Usage

ANSWER = ("content", "reasoning", "tool")  # kinds of event that show an answer
BEARING = (*ANSWER, "other")  # kinds of event that can carry tokens: one without text is `other`
LARGEST = 2**31 - 1  # of an int32 column; no engine answers with more


class ImpossibleCount(ValueError):
    """Counts that contradict each other or the stream."""


@dataclass(frozen=True)
class Counted:
    """`per_event`: None is unknown. `row_source` and `event_source` are the columns token_source and source."""

    per_event: list[int | None]
    event_source: str | None  # ids | usage | event | text
    output_tokens: int | None
    row_source: str | None  # usage | ids | text


def merge_usage(deltas: Sequence[Delta]) -> Usage:
    """The last word of the stream on each figure. ImpossibleCount for negative or absurd ones."""
    prompt = output = cached = reasoning = None
    for delta in deltas:
        usage = delta.usage
        if usage is None:
            continue
        prompt = usage.prompt_tokens if usage.prompt_tokens is not None else prompt
        output = usage.output_tokens if usage.output_tokens is not None else output
        cached = usage.cached_tokens if usage.cached_tokens is not None else cached
        reasoning = usage.reasoning_tokens if usage.reasoning_tokens is not None else reasoning
    for name, value in (("prompt", prompt), ("output", output), ("cached", cached), ("reasoning", reasoning)):
        if value is not None and not 0 <= value <= LARGEST:
            raise ImpossibleCount(f"usage says {value} {name} tokens")
    if prompt is not None and cached is not None and cached > prompt:
        raise ImpossibleCount(f"usage says {cached} cached of {prompt} prompt tokens")
    return Usage(prompt, output, cached, reasoning)


def count(
    deltas: Sequence[Delta], usage: Usage, *, whole: bool, count_text: Callable[[str], int] | None = None
) -> Counted:
    """Tokens of each event. `whole`: the stream came to its end, so a last usage is the final one.

    `count_text` counts the tokens of a text where the engine tells nothing. ImpossibleCount if the final usage
    contradicts the events.
    """
    total = usage.output_tokens if whole else None
    spoken = [i for i, delta in enumerate(deltas) if delta.kind == "tool" or (delta.kind in ANSWER and delta.text)]
    direct = _by_ids(deltas) or _by_running_usage(deltas)
    if direct is not None:
        per_event, source = direct
        known = sum(number or 0 for number in per_event)
        if total == 0 and known:
            raise ImpossibleCount(f"usage says 0 output tokens, but {known} came")
        return Counted(per_event, source, known if total is None else total, "ids" if total is None else "usage")
    row_source = "usage"
    if total is None and whole and count_text is not None and spoken:
        total, row_source = count_text("".join(deltas[i].text for i in spoken)), "text"
    if total is None:
        unknown: list[int | None] = [None if delta.kind in ANSWER else 0 for delta in deltas]
        return Counted(unknown, "text" if spoken else None, None, "text" if spoken else None)
    if total == 0 and spoken:
        raise ImpossibleCount("usage says 0 output tokens, but text came")
    return _by_total(deltas, spoken, total, row_source)


def _by_ids(deltas: Sequence[Delta]) -> tuple[list[int | None], str] | None:
    """Every answer event carries its ids (or states a number); one without them, and it is no witness."""
    answer = [i for i, delta in enumerate(deltas) if delta.kind in ANSWER]
    if not answer or any(deltas[i].token_ids is None and deltas[i].n_tokens is None for i in answer):
        return None
    per_event: list[int | None] = [0] * len(deltas)
    for i in answer:
        ids = deltas[i].token_ids
        number = len(ids) if ids is not None else deltas[i].n_tokens
        if number is None or not 0 <= number <= LARGEST:
            raise ImpossibleCount(f"an event says that it carries {number} tokens")
        if ids and not (min(ids) >= 0 and max(ids) <= LARGEST):
            raise ImpossibleCount("an event carries a token id that no vocabulary has")
        per_event[i] = number
    return per_event, "ids"


def _by_running_usage(deltas: Sequence[Delta]) -> tuple[list[int | None], str] | None:
    """Every answer event carries the number of tokens so far. Tokens of an event are the growth since the last one.

    An event without text can grow it too: half a character, or the end token.
    """
    answer = [delta for delta in deltas if delta.kind in ANSWER]
    if not answer or any(delta.usage is None or delta.usage.output_tokens is None for delta in answer):
        return None
    per_event: list[int | None] = [0] * len(deltas)
    running = 0
    for i, delta in enumerate(deltas):
        now = delta.usage.output_tokens if delta.usage is not None else None
        if now is None or delta.kind == "usage":
            continue
        if now < running:
            raise ImpossibleCount("the running usage goes backwards")
        per_event[i] = now - running
        running = now
    return per_event, "usage"


def _by_total(deltas: Sequence[Delta], spoken: list[int], total: int, row_source: str) -> Counted:
    """One token an event if some plausible set of events is as large as the total, else the total by text length.

    Plausible, in this order: all answer events with those that carry no text (half a character, the end token); the
    same without a finish event that has no text; only those with text.
    """
    per_event: list[int | None] = [0] * len(deltas)
    any_choice = [i for i, delta in enumerate(deltas) if delta.kind in BEARING]
    mute_finish = [i for i in any_choice if not (deltas[i].finish_reason and i not in spoken)]
    for bearers in (any_choice, mute_finish, spoken):
        if len(bearers) == total:
            for i in bearers:
                per_event[i] = 1
            return Counted(per_event, "event", total, row_source)
    for i, number in zip(spoken, share(total, [len(deltas[i].text) for i in spoken]), strict=True):
        per_event[i] = number
    return Counted(per_event, "text" if spoken else None, total, row_source)


def share(total: int, weights: Sequence[int]) -> list[int]:
    """Split `total` over events in proportion to `weights`, in order, each at least 1 as long as there are enough.

    With fewer tokens than events, the first event keeps one: something was seen there.
    """
    events = len(weights)
    if total >= events:
        out = [1] * events
        shares = list(weights)
    else:
        out = [min(total, 1), *([0] * (events - 1))]
        shares = [0, *weights[1:]]
    if not any(shares):
        shares = [1] * events
    spare, whole = total - sum(out), sum(shares)
    given = seen = 0
    for i, weight in enumerate(shares):
        seen += weight
        upto = spare * seen // whole
        out[i] += upto - given
        given = upto
    return out
