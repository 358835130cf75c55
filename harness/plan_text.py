"""Plan files as text: where a key stands, for errors, and TOML with every value written out."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def locate(text: str, loc: Sequence[str | int]) -> tuple[int | None, str]:
    """(line number, table) of a key path such as ("engine", 1, "options", "block_sise").

    TOML parsers give no positions, so the text is searched: first for the table's header, then for the key's last
    name below it. The line of the header when the key itself is not there (a missing key), None without either.
    """
    keys = [part for part in loc if isinstance(part, str)]
    table = _table_name(loc)
    lines = text.split("\n")
    start, end = _span(lines, loc)
    if start is None:
        return None, table
    for name in reversed(keys):
        written = re.compile(rf"(^|[\s{{,.])[\"']?{re.escape(name)}[\"']?\s*=")
        for at in range(start, end):
            if written.search(lines[at].split(" #")[0]):
                return at + 1, table
    return (start + 1 if len(loc) > 1 else None), table


def _table_name(loc: Sequence[str | int]) -> str:
    """`[[engine]] 2` for ("engine", 1, …), `[run]` for ("run", …), `the plan` for a key at the top."""
    if len(loc) > 1 and isinstance(loc[1], int):
        inner = "".join(f" {part}" for part in loc[2:-1])
        return f"[[{loc[0]}]] {loc[1] + 1}{inner}"
    return f"[{loc[0]}]" if len(loc) > 1 else "the plan"


def _span(lines: list[str], loc: Sequence[str | int]) -> tuple[int | None, int]:
    """First line (from 0) and the line after the last of the table that holds a key path."""
    headers = [at for at, line in enumerate(lines) if line.lstrip().startswith("[")]
    after = [*headers, len(lines)]
    top = (0, after[0])
    if len(loc) < 2:
        return top
    array = isinstance(loc[1], int)
    wanted = f"[[{loc[0]}]]" if array else f"[{loc[0]}]"
    matches = [i for i, at in enumerate(headers) if lines[at].split("#")[0].replace(" ", "").strip() == wanted]
    index = loc[1] if isinstance(loc[1], int) else 0
    if index < len(matches):
        i = matches[index]
        end = i + 1
        while array and end < len(headers) and lines[headers[end]].lstrip().startswith(f"[{loc[0]}."):
            end += 1  # [engine.options] belongs to the [[engine]] above it
        return headers[i], after[end]
    return top if not array else (None, 0)  # `run = { … }` stands at the top


def emit(document: Mapping[str, Any]) -> str:
    """TOML of a document: scalars and inline tables first, then tables, then arrays of tables. None is left out."""
    plain = {k: v for k, v in document.items() if not _is_tables(v) and not isinstance(v, Mapping)}
    inline = {k: v for k, v in document.items() if isinstance(v, Mapping) and not _is_section(v)}
    lines = [f"{_key(k)} = {_value(v)}" for k, v in (plain | inline).items() if v is not None]
    for key, value in document.items():
        if isinstance(value, Mapping) and _is_section(value):
            lines += ["", f"[{_key(key)}]", *_entries(value)]
        elif _is_tables(value):
            for row in value:
                lines += ["", f"[[{_key(key)}]]", *_entries(row)]
    return "\n".join(lines) + "\n"


def _entries(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_value(value)}" for key, value in table.items() if value is not None]


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)


def _is_section(value: Mapping[str, Any]) -> bool:
    """A table of its own when it has a table or a string inside; a line of numbers reads better inline."""
    return any(isinstance(inner, Mapping | str) for inner in value.values())


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items() if item is not None)
        return f"{{ {inner} }}" if inner else "{}"
    raise TypeError(f"TOML has no value for {type(value).__name__}")


def _float(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value)  # always with a point or an exponent, as TOML wants


def _string(text: str) -> str:
    """A basic string. JSON's escapes are TOML's, except that TOML wants U+007F escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
