"""multi-turn: conversations whose every turn sends the whole history again, as chat clients do.

Turn k waits for the answer to turn k − 1, then think_s. Its prompt is: system prompt | user 0 | answer 0 | user 1 | …
Answers in that history are

    scripted   segments of the workload, as long as the real answer: every engine gets the same prompts. The history
               up to the last user text was sent before, the scripted answer was not.
    real       what the engine answered: cached together with the prompt that it follows, but engines may diverge.

The first session's first turn plants the system prompt, and with plant_first all other sessions wait for it, so that
what they find cached does not depend on who came first.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from workloads.lengths import Length, draw
from workloads.model import AnswerOf, CacheClass, Request
from workloads.params import Count, Params, Some
from workloads.rng import Stream
from workloads.tokens import TokenSource
from workloads.vocabulary import Vocabulary


class MultiTurn(Params):
    """Lengths are tokens, or [low, high]; think_s is seconds between an answer and the next turn."""

    sessions: Some = 6
    turns: Annotated[int, Field(ge=1, le=10_000)] = 4
    system_tokens: Count = 128
    user_tokens: Length = 64
    output_tokens: Length = 32
    answers: Literal["scripted", "real"] = "scripted"
    think_s: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0
    plant_first: bool = True


Segments = dict[str, tuple[int, ...]]


def build(params: MultiTurn, seed: int, vocabulary: Vocabulary) -> tuple[Segments, list[Request]]:
    """Segments and requests, turn by turn over all sessions: the order in which they can be sent."""
    source = TokenSource(vocabulary, seed, "multi_turn")
    segments: Segments = {}
    if params.system_tokens:
        segments["system"] = source.body("system", params.system_tokens)
    # The token after the system prompt (token 0 without one) differs from session to session: no more is shared.
    firsts = source.distinct("the first user token", params.sessions)
    sessions = [_session(params, source, segments, seed, s, first) for s, first in enumerate(firsts)]
    return segments, [session[turn] for turn in range(params.turns) for session in sessions]


def _session(
    params: MultiTurn, source: TokenSource, segments: Segments, seed: int, index: int, first: int
) -> list[Request]:
    name = f"session-{index:04d}"
    lengths = Stream.of(seed, "multi_turn", "lengths", name)
    history: list[str | AnswerOf] = ["system"] if params.system_tokens else []
    sent = 0  # tokens of this session that an engine has seen once turn k − 1 is answered
    length = params.system_tokens
    requests: list[Request] = []
    for turn in range(params.turns):
        request_id = f"{name}.{turn:02d}"
        user = source.body(f"{request_id} user", draw(params.user_tokens, lengths))
        segments[f"{request_id}.user"] = (first, *user[1:]) if turn == 0 else user
        history.append(f"{request_id}.user")
        length += len(user)
        output = draw(params.output_tokens, lengths)
        after, cache_class, shared = (
            _first_turn(params, index) if turn == 0 else (requests[-1].request_id, "partial", sent)
        )
        requests.append(
            Request(
                request_id=request_id,
                session_id=name,
                turn=turn,
                prompt=tuple(history),
                max_tokens=output,
                cache_class=cache_class,
                shared_tokens=shared,
                after=(after,) if after else (),
                think_s=params.think_s if turn else 0.0,
            )
        )
        sent = length + (output if params.answers == "real" else 0)
        length += output
        if params.answers == "real":
            history.append(AnswerOf(request_id))
        elif turn + 1 < params.turns:
            segments[f"{request_id}.answer"] = source.body(f"{request_id} answer", output)
            history.append(f"{request_id}.answer")
    return requests


def _first_turn(params: MultiTurn, index: int) -> tuple[str, CacheClass, int]:
    """What a session's first turn waits for, its class, and the tokens that it shares."""
    if index == 0 or not params.system_tokens:
        return "", "none", 0
    return ("session-0000.00" if params.plant_first else ""), "partial", params.system_tokens
