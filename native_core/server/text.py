"""The text of one answer while it grows: whole characters only, cut at the first stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from native_core.engine import Output


class Detokenizer(Protocol):
    """Turns ids into text bit by bit; never half a character."""

    def push(self, token_id: int) -> str:
        """Text that this token completes; empty while a character is only begun."""
        ...

    def flush(self) -> str:
        """What was held back, at the end."""
        ...


class AnswerText:
    """Feeds outputs to a detokeniser and looks for stop strings across token borders.

    While the end of the text could still become a stop string, that end is held back. Text made by the first
    `min_tokens` tokens is never searched. An end-of-sequence or stop token that ends an answer has no text, unless
    `keep_stop`.
    """

    def __init__(
        self, detokenizer: Detokenizer, stops: Sequence[str] = (), *, keep_stop: bool = False, min_tokens: int = 0
    ) -> None:
        self._detokenizer = detokenizer
        self._stops = tuple(stops)
        self._keep_stop = keep_stop
        self._min_tokens = min_tokens
        self._held = ""
        self.stopped_by: str | None = None

    @property
    def has_stops(self) -> bool:
        return bool(self._stops)

    def push(self, output: Output) -> str:
        """Text to send for an output that carries a token; all that is left if the output ends the answer."""
        assert output.token is not None
        by_token = output.finished and output.finish_reason == "stop" and not self._keep_stop
        fresh = "" if by_token else self._detokenizer.push(output.token.token_id)
        if output.finished:
            fresh += self._detokenizer.flush()
        return self._release(fresh, output)

    def rest(self) -> str:
        """What is left when an answer ends without a token."""
        held, self._held = self._held + self._detokenizer.flush(), ""
        return held

    def _release(self, fresh: str, output: Output) -> str:
        if not self._stops:
            return fresh
        if output.num_output_tokens <= self._min_tokens and not output.finished:
            held, self._held = self._held, ""
            return held + fresh
        text = self._held + fresh
        found = first_stop(text, self._stops)
        if found is not None:
            at, self.stopped_by = found
            self._held = ""
            return text[: at + len(self.stopped_by)] if self._keep_stop else text[:at]
        keep = 0 if output.finished else longest_beginning(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Where the earliest stop string begins, and which it is; of several at one place the first given."""
    found = [(at, order, stop) for order, stop in enumerate(stops) if (at := text.find(stop)) >= 0]
    if not found:
        return None
    at, _, stop = min(found)
    return at, stop


def longest_beginning(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that is a proper beginning of a stop string."""
    longest = 0
    for stop in stops:
        for size in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:size]):
                longest = size
                break
    return longest
