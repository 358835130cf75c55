"""Text of answers: stop strings across token borders, nothing sent that would have to be taken back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from native_core.engine import Output
from native_core.executor import Sampled
from native_core.server.text import AnswerText, first_stop, longest_beginning


class Words:
    """A detokeniser whose token i is the i-th given word: the borders are the test's to choose."""

    def __init__(self, words: list[str]) -> None:
        self._words = words

    def push(self, token_id: int) -> str:
        return self._words[token_id]

    def flush(self) -> str:
        return ""


def run(words: list[str], stops: list[str], *, keep_stop: bool = False, min_tokens: int = 0) -> tuple[str, str | None]:
    """All that is sent for an answer of these words, ending by length at the last or at a stop string."""
    text = AnswerText(Words(words), stops, keep_stop=keep_stop, min_tokens=min_tokens)
    sent = ""
    for at in range(len(words)):
        last = at == len(words) - 1
        sent += text.push(
            Output(
                request_id="r",
                token=Sampled(at),
                finished=last,
                finish_reason="length" if last else None,
                cached_tokens=0,
                num_prompt_tokens=1,
                num_output_tokens=at + 1,
            )
        )
        if text.stopped_by is not None:
            break
    return sent, text.stopped_by


def test_a_stop_string_that_spans_three_tokens_is_cut_off_whole() -> None:
    assert run(["one t", "w", "o three", " four"], ["two"]) == ("one ", "two")


def test_the_stop_string_stays_on_request() -> None:
    assert run(["one t", "wo three"], ["two"], keep_stop=True) == ("one two", "two")


def test_a_beginning_that_comes_to_nothing_is_sent() -> None:
    assert run(["one t", "wist"], ["two"]) == ("one twist", None)
    assert run(["one tw"], ["two"]) == ("one tw", None)


def test_of_two_stops_the_one_that_begins_first_wins() -> None:
    assert run(["abcd"], ["cd", "bc"]) == ("a", "bc")


def test_text_of_the_first_min_tokens_is_not_searched() -> None:
    assert run(["stop", "more", "stop", "x"], ["stop"], min_tokens=1) == ("stopmore", "stop")


letters = st.text(alphabet="ab", max_size=3)


@given(st.lists(letters, min_size=1, max_size=12), st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3))
def test_what_is_sent_does_not_depend_on_token_borders(words: list[str], stops: list[str]) -> None:
    """The same text in one token is the specification: cut at the earliest place where a stop string is complete."""
    sent, stopped_by = run(words, stops)
    whole = "".join(words)
    if stopped_by is None:
        assert sent == whole
        assert not any(stop in whole for stop in stops)
    else:
        # A stop is seen as soon as a token completes it; a longer one that begins earlier may not be complete yet.
        assert whole.startswith(sent + stopped_by)
        assert not any(stop in sent for stop in stops)


@given(st.text(alphabet="ab", max_size=8), st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3))
def test_the_held_end_is_the_longest_that_could_become_a_stop(text: str, stops: list[str]) -> None:
    kept = longest_beginning(text, stops)
    could = [
        size
        for size in range(len(text) + 1)
        if any(stop != text[len(text) - size :] and stop.startswith(text[len(text) - size :]) for stop in stops)
    ]
    assert kept == max(could, default=0)


@given(st.text(alphabet="abc", max_size=10), st.lists(st.text(alphabet="abc", min_size=1, max_size=3), max_size=3))
def test_first_stop_is_the_earliest_of_all(text: str, stops: list[str]) -> None:
    found = first_stop(text, stops)
    places = [text.find(stop) for stop in stops if stop in text]
    assert (found is None) == (not places)
    if found is not None:
        assert found[0] == min(places)
        assert text.startswith(found[1], found[0])
