"""The TOML that runs write is what tomllib reads."""

from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.plan_text import emit, locate

keys = st.text(min_size=1, max_size=6)
scalars = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"), max_size=20)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner.filter(lambda v: not isinstance(v, dict)), max_size=3) | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=8,
)
tables = st.dictionaries(keys, values, max_size=4)


@given(st.dictionaries(keys, scalars | tables | st.lists(tables, min_size=1, max_size=3), max_size=5))
@settings(max_examples=150, deadline=None)
def test_emitted_toml_is_read_back(document: dict[str, Any]) -> None:
    assert tomllib.loads(emit(document)) == document


def test_none_is_left_out() -> None:
    text = emit({"a": None, "b": 1, "t": {"x": None, "y": "z"}, "rows": [{"k": None, "v": [1, 2]}]})
    assert text == 'b = 1\n\n[t]\ny = "z"\n\n[[rows]]\nv = [1, 2]\n'


def test_keys_are_found_in_the_table_they_belong_to() -> None:
    text = "\n".join(
        [
            "size = 0 # 1",
            "[run] # 2",
            "size = 1 # 3",
            "[[engine]] # 4",
            "size = 2 # 5",
            "[engine.options] # 6",
            "deep = 3 # 7",
            "[[engine]] # 8",
            "# size = 9",
            'options = { "deep" = 4, size = 5 } # 10',
        ]
    )
    assert locate(text, ("size",)) == (1, "the plan")
    assert locate(text, ("run", "size")) == (3, "[run]")
    assert locate(text, ("engine", 0, "size")) == (5, "[[engine]] 1")
    assert locate(text, ("engine", 0, "options", "deep")) == (7, "[[engine]] 1 options")
    assert locate(text, ("engine", 1, "options", "deep")) == (10, "[[engine]] 2 options")
    assert locate(text, ("engine", 1, "absent")) == (8, "[[engine]] 2")
    assert locate(text, ("engine", 2, "absent")) == (None, "[[engine]] 3")
    assert locate(text, ("absent",)) == (None, "the plan")
