"""Explanations are computed by the code that they explain; their drawings are well-formed."""

from __future__ import annotations

import json
import xml.dom.minidom
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli.explain import TOPICS, explain_command
from harness.records.errors import ServescopeError, UsageError
from native_core.explain import block_table, metrics, step
from native_core.explain.reservations import Reservations
from native_core.explain.svg import Drawing

# -- block tables


def test_paging_wastes_less_than_a_block_a_sequence_and_nothing_outside() -> None:
    for moment in block_table.moments():
        paged = moment.usage[0]
        assert paged.external_share == 0.0
        assert paged.internal < block_table.BLOCK * len(moment.tables)
        for usage in moment.usage:
            assert usage.held + usage.internal + usage.free == block_table.SLOTS


def test_tables_are_the_block_managers_and_name_no_block_twice() -> None:
    last = block_table.moments()[-1]
    blocks = [block for table in last.tables.values() for block in table]
    assert sorted(set(blocks)) == sorted(blocks)
    assert last.tables["D"][:4] == [6, 5, 4, 3]  # B's, given back tail first
    assert last.tables["A"] == [1, 2, 8]  # grew into a block that is not next to its others


def test_each_policy_fails_in_its_own_way() -> None:
    """Contiguous: no room for C though half of it is empty. Power of two: none for D, though enough is free."""
    moments = block_table.moments()
    third, last = moments[2], moments[-1]
    paged, contiguous, powers = third.usage
    assert contiguous.refused == ("C",)
    assert contiguous.internal_share > 0.5
    assert powers.refused == paged.refused == ()
    assert last.usage[2].refused == ("D",)
    before = moments[-2].usage[2]
    assert before.free > sum(block_table.LATE[1:]) > before.largest
    assert "D" in last.tables


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 12), st.booleans()), max_size=30))
def test_reservations_never_overlap_and_take_the_lowest_hole(actions: list[tuple[str, int, bool]]) -> None:
    slots = 24
    policy = Reservations("test", slots)
    model = [""] * slots  # who owns each slot
    for name, size, begins in actions:
        if not begins:
            policy.end(name)
            model = ["" if owner == name else owner for owner in model]
        elif name not in model:
            starts = [at for at in range(slots - size + 1) if not any(model[at : at + size])]
            assert policy.begin(name, size, 0) == bool(starts)
            if starts:
                model[starts[0] : starts[0] + size] = [name] * size
        assert [owner for owner, _ in policy.owners()] == model
        runs = "".join("x" if owner else " " for owner in model).split("x")
        assert policy.usage().largest == max(map(len, runs))


# -- one step


def test_no_step_gives_out_more_than_the_budget_and_long_prompts_are_chunked() -> None:
    steps = step.steps()
    for one in steps:
        assert sum(part.count for part in one.parts) + one.unspent == step.BUDGET
        kinds = [part.kind for part in one.parts]
        assert kinds == sorted(kinds), "decodes come before prefills here: they were admitted before"
    chunks = [part.count for one in steps for part in one.parts if part.name == "C" and part.kind == "prefill"]
    assert chunks == [14, 14, 7]
    cached = {part.name: part.cached for one in steps for part in one.parts if part.kind == "prefill" and part.cached}
    assert cached == {"D": 4}


def test_both_reasons_to_wait_are_shown() -> None:
    reasons = {one.why_waiting for one in step.steps() if one.waiting}
    assert reasons == {"the budget is spent", "3 requests run already"}


# -- metrics


def test_figures_of_the_stream_by_hand() -> None:
    """Tokens at .40 (1), .50 (3), .62 (1), .80 (2) behind an empty event at .05: seven in all."""
    by_hand = {
        "servescope": (0.40, 0.40 / 6, 0.40 / 6),
        "vllm bench serve": (0.05, 0.75 / 6, (0.35 + 0.10 + 0.12 + 0.18) / 4),
        "sglang bench_serving": (0.40, 0.40 / 6, (0.10 + 0.12 + 0.18) / 3),
        "guidellm": (0.40, 0.80 / 7, 0.40 / 6),
        "aiperf": (0.40, None, 0.40 / 6),
        "inference-perf": (0.50, 0.30 / 5, (0 + 0 + 0.12 + 0.18 + 0) / 5),
    }
    found = {reading.tool: (reading.ttft, reading.tpot, reading.itl) for reading in metrics.readings()}
    assert found.keys() == by_hand.keys()
    for tool, figures in by_hand.items():
        assert found[tool] == pytest.approx(figures), tool


def test_where_each_token_is_an_event_of_content_tools_agree_on_ttft() -> None:
    plain = [metrics.Chunk(0.5 + 0.1 * at, "content", 1) for at in range(5)]
    found = metrics.readings(plain)
    assert {round(reading.ttft, 9) for reading in found} == {0.5}
    assert {round(reading.itl or 0.0, 9) for reading in found} == {0.1}


# -- the command


@pytest.mark.parametrize("topic", TOPICS)
def test_every_topic_prints_and_draws(topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "drawing.svg"
    assert explain_command(topic, svg=target, as_json=False) == 0
    printed = capsys.readouterr().out
    assert str(target) in printed
    assert max(map(len, printed.splitlines()[:-1])) <= 140
    root = xml.dom.minidom.parse(str(target)).documentElement
    assert root is not None
    assert root.tagName == "svg"
    assert len(root.getElementsByTagName("rect")) > 5
    assert explain_command(topic, svg=None, as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["topic"] == topic


def test_topics_and_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choose from block-table, step"):
        explain_command("roofline", svg=None, as_json=False)
    with pytest.raises(UsageError, match="does not exist"):
        explain_command("step", svg=tmp_path / "none" / "x.svg", as_json=False)
    with pytest.raises(ServescopeError, match="cannot write"):
        explain_command("step", svg=tmp_path, as_json=False)


def test_what_is_written_into_a_drawing_is_escaped() -> None:
    drawing = Drawing('<script>"&')
    drawing.text(0, 10, "<b>&")
    drawing.box(0, 0, 1, 1, 'red" onload="x', "<i>")
    document = drawing.document()
    xml.dom.minidom.parseString(document)
    assert "<script>" not in document
    assert "<b>" not in document
    assert ' onload="x"' not in document
