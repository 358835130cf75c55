"""The `prompt` field of completions in its four shapes, and token ids that a model can take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from native_core.server.errors import ApiError

Prompt = str | list[int]


def read_prompts(value: Any) -> list[Prompt]:
    """Text, ids, or a list of either. ApiError 400 that names the first item that is neither."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ApiError(
            "prompt must be a string, a list of token ids, or a list of those", code="missing_parameter", param="prompt"
        )
    if not value:
        raise ApiError("prompt is empty", code="empty_prompt", param="prompt")
    if all(type(item) is int for item in value):
        return [value]
    for at, item in enumerate(value):
        if not isinstance(item, str) and not (isinstance(item, list) and all(type(token) is int for token in item)):
            raise ApiError(f"prompt.{at} is neither text nor a list of token ids", param=f"prompt.{at}")
    return value


def check_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """ApiError 400 for an empty prompt and for ids that the model has no embedding for."""
    if not ids:
        raise ApiError("prompt is empty", code="empty_prompt", param=param)
    low, high = min(ids), max(ids)
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise ApiError(
            f"token id {wrong} is outside the vocabulary of {vocab_size} (0 to {vocab_size - 1})",
            code="invalid_token_id",
            param=param,
        )
