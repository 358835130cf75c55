"""A request, from arrival to its last token: what was asked, how far it is, which blocks it holds."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import Literal

from native_core.executor import SamplingParams

FinishReason = Literal["stop", "length", "abort"]


class RequestError(ValueError):
    """A request that is not taken. `code` is a stable word for programs, `http_status` what a server answers."""

    def __init__(self, message: str, *, code: str, http_status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.http_status = http_status


class State(Enum):
    """waiting → running → finished; a preempted request waits again, and starts from nothing."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """One sequence. The caller sets what comes before `num_prompt_tokens`; the engine owns the rest, others read it.

    Token accounts, in tokens:

        tokens        prompt ...................... outputs so far ....
        placeholders                                                   .. outputs of steps in flight, not known yet
        computed      ...................................                 K and V exist, or a step in flight makes them

    A request emits a token in the step in which `computed` reaches len(tokens) + placeholders. The last token sampled
    is never computed, so a finished request leaves (prompt + outputs - 1) // block_size full blocks (V9).

    RequestError for token ids that are no integers from 0 to 2**31 - 1; `Engine.add` checks the limits.
    """

    request_id: str
    prompt_ids: Sequence[int]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    _: KW_ONLY
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0  # ids that end the request are not sampled before it has so many outputs
    priority: int = 0  # smaller is served first, as in vLLM
    arrival: float | None = None  # seconds on the executor's clock; None: when it is added
    salt: str | None = None  # cached blocks are shared only among requests of one salt

    num_prompt_tokens: int = field(init=False)
    tokens: array[int] = field(init=False, repr=False)  # prompt and outputs so far
    state: State = field(default=State.WAITING, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    block_table: list[int] = field(default_factory=list, init=False, repr=False)
    prefix_ids: list[int] = field(default_factory=list, init=False, repr=False)  # identity of each full block
    registered: int = field(default=0, init=False)  # leading blocks of the table that look-ups can find
    computed: int = field(default=0, init=False)
    placeholders: int = field(default=0, init=False)
    ending_ids: frozenset[int] = field(init=False)  # stop_token_ids, and the engine's end-of-sequence ids
    cached_tokens: int | None = field(default=None, init=False)  # hit at the first admission
    preemptions: int = field(default=0, init=False)
    t_queued: float = field(default=0.0, init=False)  # arrival, or the latest preemption
    t_admitted: float | None = field(default=None, init=False)  # first admission
    t_first_token: float | None = field(default=None, init=False)
    t_finished: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        try:
            self.tokens = array("i", self.prompt_ids)
        except (OverflowError, TypeError):
            raise RequestError("the prompt has token ids that are no 32-bit integers", code="bad_token_id") from None
        if self.tokens and min(self.tokens) < 0:
            raise RequestError("the prompt has a negative token id", code="bad_token_id")
        self.num_prompt_tokens = len(self.tokens)
        self.ending_ids = self.stop_token_ids

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def output_ids(self) -> list[int]:
        return self.tokens[self.num_prompt_tokens :].tolist()

    @property
    def urgency(self) -> tuple[int, float, str]:
        """Order under the priority policy: the smallest is served first (V22)."""
        return self.priority, self.arrival or 0.0, self.request_id

    @property
    def queue_seconds(self) -> float | None:
        """From arrival to the first admission; None before it."""
        return None if self.t_admitted is None or self.arrival is None else self.t_admitted - self.arrival

    @property
    def prefill_seconds(self) -> float | None:
        """From the first admission to the first token, preemptions in between included."""
        return None if self.t_first_token is None or self.t_admitted is None else self.t_first_token - self.t_admitted

    @property
    def decode_seconds(self) -> float | None:
        """From the first token to the end; None while the request runs, or if it ended without a token."""
        return None if self.t_finished is None or self.t_first_token is None else self.t_finished - self.t_first_token
