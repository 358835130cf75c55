"""Reading all scrapes at once says what reading them one by one says, and in far less time."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.records.signals.catalogue import KINDS, Catalogue, canonical
from harness.records.signals.series import SignalSeries
from harness.records.signals.witness import Witness, index, read
from tests.harness.records.signal_texts import Line, server_table

S = 1_000_000_000


def lines_of(kind: str) -> list[tuple[str, list[dict[str, str]]]]:
    """Every series that the catalogue's witnesses are made of, with labels that they take and some that they do not."""
    found: dict[str, list[dict[str, str]]] = {}
    for witnesses in Catalogue.load(kind).signals().values():
        for one in witnesses:
            for name in filter(None, (*one.counters, one.metric, one.share_of)):
                found.setdefault(name, []).extend(_labels(one))
    return sorted(found.items())


def _labels(witness: Witness) -> list[dict[str, str]]:
    taken = [{name: value} for name, values in witness.where.items() for value in values]
    numbers = [{witness.label: "3"} | ({witness.times: "16"} if witness.times else {}), {witness.label: "none"}]
    return [{"engine": "0"}, {"engine": "1"}, *taken, *(numbers if witness.label else [])]


VALUES = st.sampled_from([0.0, 1.0, 0.1, 2.5, 1e6, math.nan, math.inf])


@st.composite
def scrapes(draw: st.DrawFn) -> tuple[str, list[tuple[int, list[Line]]]]:
    kind = draw(st.sampled_from(KINDS))
    series = [(name, labels) for name, several in lines_of(kind) for labels in several]
    pages = []
    for at in range(draw(st.integers(1, 3))):
        chosen = draw(st.lists(st.sampled_from(series), max_size=60))
        unique = {(name, tuple(sorted(labels.items()))) for name, labels in chosen}
        pages.append(((at + 1) * S, [Line(name, draw(VALUES), dict(labels)) for name, labels in sorted(unique)]))
    return kind, [page for page in pages if page[1]]


@settings(deadline=None, max_examples=60)
@given(scrapes())
def test_gauges_are_what_each_scrape_shows(drawn: tuple[str, list[tuple[int, list[Line]]]]) -> None:
    """Through every gauge and info witness of the catalogue; the rules of a single scrape are the oracle."""
    kind, pages = drawn
    if not pages:
        return
    series = SignalSeries(server_table(pages, kind), kind)
    names = {line.metric for _, lines in pages for line in lines}
    for signal, witnesses in Catalogue.load(kind).signals().items():
        speaking = next((one for one in witnesses if set(one.counters or (one.metric,)) <= names), None)
        if speaking is None or speaking.counters:
            continue
        readings = [(t, read(speaking, index(lines))) for t, lines in pages]
        expected = {t: one.value for t, one in readings if one is not None and one.value is not None}
        found = series.series(signal)["value"].to_dict()
        assert {t: repr(float(v)) for t, v in found.items()} == {t: repr(float(v)) for t, v in expected.items()}


def test_a_first_scrape_shows_of_counters_what_reading_it_alone_shows() -> None:
    for kind in KINDS:
        lines = [
            Line(name, float(at + 1), labels)
            for at, (name, several) in enumerate(lines_of(kind))
            for labels in ({"engine": "0"}, *several[2:3])
        ]
        unique = {(line.metric, tuple(sorted(line.labels.items()))): line for line in lines}
        page = [unique[key] for key in sorted(unique)]
        series, checked = SignalSeries(server_table([(S, page)], kind), kind), 0
        for signal, witnesses in Catalogue.load(kind).signals().items():
            if not witnesses or not witnesses[0].counters:
                continue
            reading = read(witnesses[0], index(page))
            frame = series.series(signal)
            if reading is None:
                assert frame.empty
                continue
            checked += 1
            column = "total" if canonical()[signal].kind == "pair" else "value"
            assert frame[column].tolist() == [reading.total]
            if column == "total":
                assert frame["count"].tolist() == [reading.count]
        assert checked > 5


def test_a_fall_over_a_scrape_that_lacks_the_series_is_a_restart() -> None:
    """Growth took it for one, and the count of restarts did not."""
    name, gone, stays = "vllm:generation_tokens_total", {"engine": "0"}, {"engine": "1"}
    pages = [
        (S, [Line(name, 100, gone), Line(name, 5, stays)]),
        (2 * S, [Line(name, 5, stays)]),
        (3 * S, [Line(name, 4, gone), Line(name, 5, stays)]),
    ]
    delta = SignalSeries(server_table(pages), "vllm").delta("output_tokens")
    assert delta is not None
    assert (delta.total, delta.resets) == (4, 1)


def test_a_signal_that_says_nothing_is_an_empty_frame() -> None:
    table = server_table([(S, [Line("vllm:kv_cache_usage_perc", math.nan)])])
    assert SignalSeries(table, "vllm").series("kv_usage").empty


def test_hundreds_of_scrapes_are_read_in_a_moment() -> None:
    """A loop over scrapes took seconds for each cell of a report."""
    series = [(name, several[0]) for name, several in lines_of("vllm")]
    pages = [((at + 1) * S, [Line(name, float(at), labels) for name, labels in series]) for at in range(400)]
    table = server_table(pages)
    began = time.process_time()
    whole = SignalSeries(table, "vllm")
    grown = [whole.delta(signal) for signal in canonical()]
    assert time.process_time() - began < 1.0
    assert sum(one is not None for one in grown) > 10
    tokens = whole.delta("output_tokens")
    assert tokens is not None
    assert tokens.total == pytest.approx(399)
