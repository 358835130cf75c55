"""Workload files: what is written is read back, and nothing malformed gets through."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.workloads.sharing import WORDS
from workloads.file import read_workload, write_workload
from workloads.model import Load, Workload, WorkloadError
from workloads.registry import FAMILIES, generate
from workloads.rng import Stream

# One hash per family: a change here means that the same seed gives another workload than before, and that files of
# older versions are no longer reproduced. Raise registry.GENERATOR with it.
GOLDEN = {
    "prefix_hit": "a7fc3628b99cb18c01d672e2d4233b1a9c26d7eca569b69a58a141a692d38b2d",
    "long_prompt": "91201ca5acc6a1644d6f65943493b799cecc1dcd444f42e4088f05c77aedace3",
    "multi_turn": "9a0ddb5ecdc923a920203831c4b334b55890ee13a5c6f184287735888e0e684c",
}


def made(family: str = "multi_turn", **params: Any) -> Workload:
    return generate(family, name="w", seed=11, params=params, load=None, vocabulary=WORDS)


@pytest.mark.parametrize("family", FAMILIES)
def test_golden_lines(family: str, tmp_path: Path) -> None:
    assert write_workload(made(family), tmp_path / "w.jsonl.gz") == GOLDEN[family]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", ["own", "poisson"])
def test_written_is_read(family: str, mode: str, tmp_path: Path) -> None:
    load = None if mode == "own" else Load("poisson", {"rate": 3.0})
    workload = generate(family, name="Ω \n \x7f", seed=-3, params={}, load=load, vocabulary=WORDS)
    write_workload(workload, tmp_path / "w.jsonl.gz")
    assert read_workload(tmp_path / "w.jsonl.gz") == workload


def test_real_answers_are_read(tmp_path: Path) -> None:
    workload = made(answers="real", think_s=0.5)
    write_workload(workload, tmp_path / "w.jsonl.gz")
    assert read_workload(tmp_path / "w.jsonl.gz") == workload


def test_two_writes_are_the_same_bytes_and_the_hash_is_that_of_the_lines(tmp_path: Path) -> None:
    one, two = tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.gz"
    digest = write_workload(made(), one)
    assert digest == write_workload(made(), two)
    assert one.read_bytes() == two.read_bytes()
    assert digest == hashlib.sha256(gzip.decompress(one.read_bytes())).hexdigest()
    assert not list(tmp_path.glob(".*"))


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="cannot write"):
        write_workload(made(), tmp_path / "missing" / "w.jsonl.gz")


@given(row=st.integers(0, 11), data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_requests_keep_every_field(row: int, data: st.DataObject, tmp_path: Path) -> None:
    workload = made(sessions=3)
    names = st.text(min_size=1, max_size=10).filter(lambda t: t.isprintable())
    changed = replace(
        workload.requests[row],
        sampling=data.draw(st.dictionaries(names, st.floats(allow_nan=False, allow_infinity=False) | st.integers())),
        priority=data.draw(st.none() | st.integers(-5, 5)),
        adapter=data.draw(st.none() | names),
        grammar=data.draw(st.none() | names),
        ignore_eos=data.draw(st.booleans()),
        think_s=data.draw(st.floats(0, 1e6)),
        max_tokens=data.draw(st.integers(1, 2**31 - 1)),
    )
    requests = (*workload.requests[:row], changed, *workload.requests[row + 1 :])
    write_workload(replace(workload, requests=requests), tmp_path / "w.jsonl.gz")
    assert read_workload(tmp_path / "w.jsonl.gz").requests == requests


Lines = list[dict[str, Any]]


def lines_of(workload: Workload, tmp_path: Path) -> Lines:
    write_workload(workload, tmp_path / "whole.jsonl.gz")
    text = gzip.decompress((tmp_path / "whole.jsonl.gz").read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


def packed(lines: Lines, tmp_path: Path) -> Path:
    path = tmp_path / "w.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    return path


def ids(*values: int) -> str:
    return base64.b64encode(np.asarray(values, dtype="<u4").tobytes()).decode()


def edit(at: int, **values: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[at].update(values)


def drop(at: int, key: str) -> Callable[[Lines], None]:
    return lambda lines: lines[at].__delitem__(key)


LAST = -1
CASES: list[tuple[str, Callable[[Lines], None], str]] = [
    ("foreign schema", edit(0, schema=2), r":1: .*schema 2, this servescope reads 1"),
    ("schema true", edit(0, schema=True), r":1: .*schema True"),
    ("unknown header key", edit(0, colour=1), r":1: unknown key 'colour'"),
    ("missing header key", drop(0, "family"), r":1: 'family' is missing"),
    ("load without its number", edit(0, load={"mode": "closed", "params": {}}), r":1: load: .*needs in_flight"),
    ("seed as text", edit(0, seed="7"), r":1: seed: "),
    ("unknown segment key", edit(1, x=1), r":2: unknown key 'x'"),
    ("segment twice", lambda lines: lines.insert(2, lines[1]), r":3: segment 'system' was given before"),
    ("both forms", edit(1, seed=1, n=2), r":2: a segment has either ids, or seed and n"),
    ("half a form", lambda lines: lines.__setitem__(1, {"segment": "system", "seed": 1}), r":2: a segment has either"),
    ("no base64", edit(1, ids="*"), r":2: ids: "),
    ("bytes over", edit(1, ids=base64.b64encode(b"12345").decode()), r":2: ids: 5 bytes"),
    ("empty segment", edit(1, ids=""), r":2: ids: 0 bytes"),
    ("outside the vocabulary", edit(1, ids=ids(49151, 49152)), r":2: token id 49152 .*outside the vocabulary"),
    (
        "seeded without range",
        lambda lines: lines.__setitem__(1, {"segment": "system", "seed": 1, "n": 2}),
        r":2: .*seeded_ids",
    ),
    ("range out of vocabulary", edit(0, seeded_ids=[0, 49153]), r":1: seeded_ids"),
    ("segment too late", lambda lines: lines.append({"segment": "late", "ids": ids(1)}), r"segments come first"),
    ("segment missing", edit(LAST, prompt=["nowhere"]), r"segment 'nowhere' of the prompt is missing"),
    ("empty prompt", edit(LAST, prompt=[]), r"prompt: "),
    ("unknown row key", edit(LAST, extra=1), r"unknown key 'extra'"),
    ("missing row key", drop(LAST, "max_tokens"), r"'max_tokens' is missing"),
    ("no tokens", edit(LAST, max_tokens=0), r"max_tokens: "),
    ("tokens as text", edit(LAST, max_tokens="4"), r"max_tokens: "),
    ("bool as number", edit(LAST, turn=True), r"turn: "),
    ("negative think", edit(LAST, think_s=-1), r"think_s: "),
    ("unknown class", edit(LAST, cache_class="half"), r"cache_class: "),
    ("request twice", lambda lines: lines.append(lines[-1]), r"'session-0001.01' was given before"),
    ("after nobody", edit(LAST, after=["nobody"]), r"`after` names 'nobody'"),
    ("after itself", edit(LAST, after=["session-0001.01"]), r"waits for itself"),
    (
        "answer not waited for",
        edit(LAST, after=[], prompt=[{"answer_of": "session-0001.00"}]),
        r"name that request in `after`",
    ),
    ("answer of nobody", edit(LAST, prompt=[{"answer_of": "x"}]), r"answer of 'x', which is no request"),
    (
        "answer of another session",
        edit(LAST, after=["session-0000.00"], prompt=[{"answer_of": "session-0000.00"}]),
        r"in another session",
    ),
    ("arrival in a closed load", edit(LAST, arrival_s=1.0), r"arrival_s in a sessions load"),
    ("no arrival in an open load", edit(0, load={"mode": "trace", "params": {}}), r"a trace load needs arrival_s"),
    ("no request", lambda lines: lines.__delitem__(slice(-4, None)), r"holds no request"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "says"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_malformed_file_is_refused_with_its_line(change: Callable[[Lines], None], says: str, tmp_path: Path) -> None:
    lines = lines_of(made(sessions=2, turns=2), tmp_path)
    read_workload(packed(lines, tmp_path))  # whole before the change
    change(lines)
    with pytest.raises(WorkloadError, match=says) as error:
        read_workload(packed(lines, tmp_path))
    assert str(error.value).startswith(str(tmp_path))
    assert "\n" not in str(error.value)


def test_a_circle_of_two_is_found(tmp_path: Path) -> None:
    lines = lines_of(made(sessions=2, turns=2), tmp_path)
    rows = {line["request_id"]: line for line in lines if "request_id" in line}
    rows["session-0000.00"]["after"] = ["session-0001.01"]
    with pytest.raises(WorkloadError, match="waits for itself"):
        read_workload(packed(lines, tmp_path))


def test_seeded_segments_are_drawn_from_the_header_s_range(tmp_path: Path) -> None:
    lines = lines_of(made(sessions=2, turns=2), tmp_path)
    lines[0]["seeded_ids"] = [100, 164]
    lines[1] = {"segment": "system", "seed": 5, "n": 200}
    drawn = read_workload(packed(lines, tmp_path)).segments["system"]
    assert drawn == tuple(100 + i for i in Stream.of(5, "segment").integers(64, 200))
    assert set(drawn) <= set(range(100, 164))


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "is empty"),
        (b"plain text", "no workload file"),
        (gzip.compress(b""), "is empty"),
        (gzip.compress(b"\n"), "no JSON"),
        (gzip.compress(b"[1]\n"), "no JSON object"),
        (gzip.compress(b"\xff\xfe\n"), "no workload file"),
        (gzip.compress(b'{"schema": 1'), "cut off"),
        (gzip.compress(b'{"schema": 1, "schema": 1}\n'), "given twice"),
        (gzip.compress(b'{"schema": 1, "seed": NaN}\n'), "no number of JSON"),
        (gzip.compress(b"[" * 100_000 + b"\n"), "no JSON"),
    ],
)
def test_what_is_no_workload_file_is_refused(raw: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl.gz"
    path.write_bytes(raw)
    with pytest.raises(WorkloadError, match=says):
        read_workload(path)


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="servescope workload make"):
        read_workload(tmp_path / "none.jsonl.gz")
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_workload(tmp_path)


@given(data=st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_never_passes_for_another_workload(data: st.DataObject, tmp_path: Path) -> None:
    """gzip's checksum and the strict rows: cut or with one byte changed, it is the same workload or an error."""
    workload = made(sessions=2, turns=2)
    path = tmp_path / "w.jsonl.gz"
    write_workload(workload, path)
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        raw = raw[:at]
    else:
        raw[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(raw))
    try:
        found = read_workload(path)
    except WorkloadError:
        return
    assert found == workload
