"""A request, from arrival to its last token: what was asked, how far it is, which blocks it holds."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
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
    """waiting → running → finished; a preempted request waits again, at the front, and starts from nothing."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Request:
    """One sequence. The engine owns everything below the constructor's arguments; callers only read it.

    Token accounts, in tokens:

        tokens       | prompt .......................... | outputs so far ... |
        computed     | K and V exist (or are being made by a step in flight) ..|
        placeholders                                     asynchronous loop only: outputs of steps in flight, not
                                                         known yet, but already part of `computed`'s goal

    A request emits a token in the step in which `computed` reaches len(tokens) + placeholders. The last token sampled
    is never computed, so a finished request leaves (prompt + outputs - 1) // block_size full blocks.
    """

    __slots__ = (
        "arrival",
        "block_table",
        "cached_tokens",
        "computed",
        "finish_reason",
        "ignore_eos",
        "in_flight",
        "max_tokens",
        "min_tokens",
        "num_prompt_tokens",
        "placeholders",
        "preemptions",
        "prefix_ids",
        "priority",
        "registered",
        "request_id",
        "salt",
        "sampling",
        "stale",
        "state",
        "stop_token_ids",
        "t_admitted",
        "t_finished",
        "t_first_token",
        "tokens",
    )

    def __init__(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams | None = None,
        *,
        ignore_eos: bool = False,
        stop_token_ids: Iterable[int] = (),
        min_tokens: int = 0,
        priority: int = 0,
        arrival: float | None = None,
        salt: str | None = None,
    ) -> None:
        """`arrival` is in seconds on the executor's clock; None lets `Engine.add` stamp it. A smaller `priority` is
        served first, as in vLLM. Requests share cached blocks only with requests of the same `salt`.

        RequestError for token ids that are no integers from 0 to 2**31 - 1; the limits are checked by `Engine.add`.
        """
        try:
            self.tokens = array("i", prompt_ids)
        except (OverflowError, TypeError):
            raise RequestError("the prompt has token ids that are no 32-bit integers", code="bad_token_id") from None
        if self.tokens and min(self.tokens) < 0:
            raise RequestError("the prompt has a negative token id", code="bad_token_id")
        self.request_id = request_id
        self.num_prompt_tokens = len(self.tokens)
        self.max_tokens = max_tokens
        self.sampling = sampling or SamplingParams()
        self.ignore_eos = ignore_eos
        self.stop_token_ids = frozenset(stop_token_ids)
        self.min_tokens = min_tokens
        self.priority = priority
        self.arrival = arrival
        self.salt = salt

        self.state = State.WAITING
        self.finish_reason: FinishReason | None = None
        self.block_table: list[int] = []
        self.prefix_ids: list[int] = []  # identity of each full block of `tokens`
        self.registered = 0  # leading blocks of the table that look-ups can find
        self.computed = 0
        self.placeholders = 0
        self.in_flight = 0  # tokens in steps whose result is not in yet
        self.stale = 0  # those of them that belong to a life before a preemption
        self.cached_tokens: int | None = None  # hit at the first admission; later ones do not change it
        self.preemptions = 0
        self.t_admitted: float | None = None
        self.t_first_token: float | None = None
        self.t_finished: float | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def prompt_ids(self) -> list[int]:
        return self.tokens[: self.num_prompt_tokens].tolist()

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
