"""Exposition text of every shape that a server may send, and what is kept of it."""

from __future__ import annotations

import contextlib
import json
import math
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from harness.observe.exposition import ExpositionError, Reader, Sample, is_exposition, parse

DUMPS = Path(__file__).parents[4] / "shared" / "data" / "metrics"


def triples(body: bytes) -> list[tuple[str, dict[str, str], float]]:
    return [(one.metric, dict(one.labels), one.value) for one in parse(body)]


def test_names_stay_as_they_are_on_the_wire() -> None:
    """A parser that follows TYPE lines would call the first one `a_total` and lose the second's sum."""
    body = b"# TYPE a counter\na 3\n# TYPE vllm:steps_total histogram\nvllm:steps_total_sum 8\n"
    assert [one.metric for one in parse(body)] == ["a", "vllm:steps_total_sum"]


def test_openmetrics_with_timestamps_exemplars_and_end_mark() -> None:
    body = b'# TYPE a histogram\na_bucket{le="1"} 3 1700000000.5 # {trace_id="q"} 0.5 12\na_sum 2.5\n# EOF'
    assert triples(body) == [("a_bucket", {"le": "1"}, 3.0), ("a_sum", {}, 2.5)]


def test_values_that_are_no_numbers() -> None:
    values = [one.value for one in parse(b"a NaN\nb +Inf\nc -Inf\nd 1e-3\n")]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf, 1e-3]


def test_a_body_that_was_cut_loses_its_last_line_and_says_so() -> None:
    samples, faults = Reader().samples(b"a 1\nb 12")
    assert [one.metric for one in samples] == ["a"]  # b may have been 123
    assert faults.cut
    assert str(faults) == "the page ends inside a line"


def test_of_a_series_given_twice_the_last_stands() -> None:
    samples, faults = Reader().samples(b'a{x="1"} 1\nb 5\na{x="1"} 2\n')
    assert [(one.metric, one.value) for one in samples] == [("a", 2.0), ("b", 5.0)]
    assert faults.twice == 1


def test_a_line_that_is_none_costs_that_line_alone() -> None:
    samples, faults = Reader().samples(b'a 1\n<p>gateway timeout</p>\nb{x="1} 2\nc{x=1} 3\nd 4\n')
    assert [one.metric for one in samples] == ["a", "d"]
    assert faults.lines == 3
    assert faults.first.startswith("<p>")


def test_gauges_with_gt_and_le() -> None:
    body = b'# TYPE q gauge\nq{gt="0",le="1"} 2\nq{gt="200",le="+Inf"} 1\n'
    assert triples(body) == [("q", {"gt": "0", "le": "1"}, 2.0), ("q", {"gt": "200", "le": "+Inf"}, 1.0)]


def test_windows_line_ends_indented_comments_and_loose_spaces() -> None:
    assert triples(b'a 1\r\n\r\n  # words\nb{ x = "1" , y="2", }  5\n') == [
        ("a", {}, 1.0),
        ("b", {"x": "1", "y": "2"}, 5.0),
    ]


@pytest.mark.parametrize("body", [b"<html>\n<body>nothing here</body>\n", b'{"detail":"Not Found"}\n', b"\x00\xff\n"])
def test_a_page_that_is_none(body: bytes) -> None:
    with pytest.raises(ExpositionError, match="no exposition text"):
        parse(body)


def test_an_empty_page_holds_nothing() -> None:
    assert parse(b"") == []
    assert parse(b"# HELP a words\n# TYPE a counter\n") == []


def test_ten_megabytes() -> None:
    """A parser that walks labels character by character took many seconds for each such page."""
    line = b'vllm:a_bucket{model_name="a model with a long name, as they have",le="%d"} %d\n'
    body = b"".join(line % (at, at) for at in range(100_000)) + b"other 1\n"
    body += b"# " + b"x" * (10_000_000 - len(body)) + b"\n"
    reader = Reader(("vllm:",))
    rows, faults = reader.rows(body)
    assert (len(rows), str(faults)) == (100_000, "")
    began = time.process_time()
    assert reader.rows(body)[0] == rows
    assert time.process_time() - began < 2.0


def test_a_page_of_700_lines_is_read_in_milliseconds_once_it_is_known() -> None:
    names = [f"vllm:m{at}_bucket" for at in range(35)]
    body = b"".join(
        f'{name}{{engine="0",le="{le}",model_name="m"}} {le}.0\n'.encode() for name in names for le in range(20)
    )
    reader = Reader(("vllm:",))
    reader.rows(body)

    def cost() -> float:
        began = time.process_time()
        assert len(reader.rows(body)[0]) == 700
        return time.process_time() - began

    assert min(cost() for _ in range(20)) < 0.003  # about 0.6 ms; through the client library 20


def test_a_known_series_with_a_timestamp_is_not_read_as_its_value() -> None:
    reader = Reader()
    assert reader.rows(b'a{x="1"} 5\n')[0] == [("a", '{"x":"1"}', 5.0)]
    assert reader.rows(b'a{x="1"} 6 1700000000\n')[0] == [("a", '{"x":"1"}', 6.0)]
    assert reader.rows(b'a{x="1"} 7\n')[0] == [("a", '{"x":"1"}', 7.0)]


@pytest.mark.parametrize(
    ("body", "is_one"),
    [
        (b"", True),
        (b"# TYPE a counter\n", True),
        (b"a 1\n", True),
        (b"junk here\na 1\n", True),
        (b"<html><body>nothing here</body></html>", False),
        (b'{"detail":"Not Found"}', False),
        (b"Not Found\n", False),
    ],
)
def test_what_is_taken_for_a_metrics_page(body: bytes, is_one: bool) -> None:
    assert is_exposition(body) is is_one


def test_a_label_given_twice_is_a_malformed_line() -> None:
    samples, faults = Reader().samples(b'a{x="1",x="2"} 1\nb 2\n')
    assert ([one.metric for one in samples], faults.lines) == (["b"], 1)


def test_a_reader_takes_only_the_names_it_is_told() -> None:
    body = b"vllm:a 1\npython_info 1\nprocess_open_fds 9\nvllm_b 2\n"
    rows, _ = Reader(("vllm:", "process_")).rows(body)
    assert [name for name, _, _ in rows] == ["vllm:a", "process_open_fds"]


def test_what_a_reader_has_learnt_changes_nothing() -> None:
    reader = Reader()
    first, _ = reader.rows(b'a{x="1"} 1\nb{y="2",x="1"} 2\n')
    again, _ = reader.rows(b'b{y="2",x="1"} 7\na{x="1"} 8\n')
    assert first == [("a", '{"x":"1"}', 1.0), ("b", '{"x":"1","y":"2"}', 2.0)]
    assert again == [("b", '{"x":"1","y":"2"}', 7.0), ("a", '{"x":"1"}', 8.0)]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)


@settings(max_examples=150, deadline=None)
@given(labels=st.dictionaries(NAMES.filter(lambda name: not name.startswith("__")), TEXT, min_size=1, max_size=3))
def test_labels_come_back_as_an_exporter_wrote_them(labels: dict[str, str]) -> None:
    """Line ends of Unicode, braces, quotes, ` # {`: whatever a label holds, the sample beside it is not lost."""
    registry = CollectorRegistry()
    Gauge("vllm:one", "words", list(labels), registry=registry).labels(**labels).set(4)
    Counter("vllm:two", "words", registry=registry).inc(3)
    found = {one.metric: one for one in parse(generate_latest(registry))}
    assert dict(found["vllm:one"].labels) == labels
    assert json.loads(found["vllm:one"].labels_json) == labels
    assert found["vllm:two_total"] == Sample("vllm:two_total", {}, 3.0)


PIECES = st.sampled_from([b"a", b"{", b"}", b'"', b" ", b"1", b"\n", b"#", b"\\", b"=", b","])


NUMBERS = st.floats().map(repr) | st.integers(-(10**18), 10**18).map(str)
HARD_VALUES = ["", "a b", ',"', " # {", "}", "\\", "\n", "\u2028", "\x0b", "=", "é"]
LABELS = st.lists(st.tuples(NAMES, st.sampled_from(HARD_VALUES)), max_size=3)
ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(NAMES, LABELS, NUMBERS), max_size=8))
def test_each_line_is_read_as_the_client_library_reads_it(lines: list[tuple[str, list[tuple[str, str]], str]]) -> None:
    reader = Reader()
    for name, pairs, number in lines:
        inner = ",".join(f'{label}="{text.translate(ESCAPES)}"' for label, text in dict(pairs).items())
        line = f"{name}{{{inner}}} {number}\n" if inner else f"{name} {number}\n"
        oracle = [one for family in text_string_to_metric_families(line) for one in family.samples]
        for _ in range(2):  # as new, and as known
            found, faults = reader.samples(line.encode())
            assert str(faults) == ""
            assert [(one.metric, dict(one.labels), repr(one.value)) for one in found] == [
                (one.name, dict(one.labels), repr(float(one.value))) for one in oracle
            ]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | st.lists(PIECES, max_size=60).map(b"".join))
def test_any_bytes_give_samples_or_the_one_error(body: bytes) -> None:
    samples: list[Sample] = []
    with contextlib.suppress(ExpositionError):
        samples = parse(body)
    assert all(one.metric for one in samples)
    assert len(samples) <= body.count(b"\n")


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 200))
def test_half_a_page_gives_the_samples_that_are_whole(cut: int) -> None:
    body = b"".join(b'vllm:a{i="%d"} %d\n' % (at, 1000 + at) for at in range(12))
    found = triples(body[:cut])
    assert found == triples(body)[: body[:cut].count(b"\n")]


@pytest.mark.parametrize(("dump", "lines"), [("vllm-0.32.0.txt", 445), ("sglang-0.5.23.txt", 569)])
def test_recorded_pages_give_what_the_client_library_reads(dump: str, lines: int) -> None:
    path = DUMPS / dump
    if not path.is_file():
        pytest.skip(f"{dump} is not on this machine: it is a recorded scrape that is not part of the repository")
    body = path.read_bytes()
    bare = "\n".join(line for line in body.decode().splitlines() if not line.startswith("#")) + "\n"
    expected = [
        (one.name, dict(one.labels), repr(one.value))
        for family in text_string_to_metric_families(bare)
        for one in family.samples
    ]
    assert [(metric, labels, repr(value)) for metric, labels, value in triples(body)] == expected
    assert len(expected) == lines
