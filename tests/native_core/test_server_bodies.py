"""Bodies and prompts: what is refused, and how the refusal names the fault."""

from __future__ import annotations

from typing import Any

import pytest

from native_core.server.bodies import ChatBody, CompletionBody, parse
from native_core.server.errors import ApiError
from native_core.server.prompts import check_ids, read_prompts


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", "many"),
        ("temperature", -0.1),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 2),
        ("n", 0),
        ("min_tokens", -1),
        ("logprobs", 21),
        ("seed", 1 << 63),
        ("cache_salt", ""),
        ("stop", 5),
        ("stop_token_ids", "x"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        parse(CompletionBody, {"prompt": "x", field: value})
    assert caught.value.status == 400
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("field", "value"), [("echo", True), ("logit_bias", {"5": 1}), ("tools", [{}]), ("best_of", 2)]
)
def test_an_option_that_is_not_built_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ApiError, match="not supported") as caught:
        parse(CompletionBody, {"prompt": "x", field: value})
    assert caught.value.code == "unsupported_parameter"


def test_unknown_fields_and_neutral_values_pass() -> None:
    neutral = {"echo": False, "frequency_penalty": 0.0, "suffix": None}
    body = parse(CompletionBody, {"prompt": "x", "who_knows": 1, **neutral})
    assert body.max_tokens == 16


def test_chat_needs_messages() -> None:
    with pytest.raises(ApiError) as caught:
        parse(ChatBody, {})
    assert caught.value.code == "missing_parameter"
    assert caught.value.param == "messages"


def test_the_four_shapes_of_a_prompt() -> None:
    assert read_prompts("a") == ["a"]
    assert read_prompts([1, 2]) == [[1, 2]]
    assert read_prompts(["a", "b"]) == ["a", "b"]
    assert read_prompts([[1], "b"]) == [[1], "b"]


@pytest.mark.parametrize("prompt", [None, 5, {}, [], [1, "a"], [[1], 2], [1.5], [True], [["a"]]])
def test_what_is_no_prompt(prompt: Any) -> None:
    with pytest.raises(ApiError):
        read_prompts(prompt)


@pytest.mark.parametrize("ids", [[], [-1], [3, 10], [1 << 40]])
def test_ids_outside_the_vocabulary(ids: list[int]) -> None:
    with pytest.raises(ApiError) as caught:
        check_ids(ids, 10, "prompt")
    assert caught.value.code in ("empty_prompt", "invalid_token_id")
