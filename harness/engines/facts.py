"""Turning what engines print (strings, 'None', floats) into typed facts; what does not fit is None, never a default."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any


def integer(value: Any) -> int | None:
    """A whole number, also from '128' or 46592.0."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() else None


def truth(value: Any) -> bool | None:
    """A truth value, also from 'True' or 'false'."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return None


def negated(value: Any) -> bool | None:
    """The opposite of a truth value (`disable_…` settings)."""
    found = truth(value)
    return None if found is None else not found


def word(value: Any) -> str | None:
    """A non-empty word; 'None' is none."""
    return value if isinstance(value, str) and value and value != "None" else None


def inner(document: Any, *path: str) -> Any:
    """The value below a path of keys, or None where the path breaks."""
    for key in path:
        if not isinstance(document, Mapping):
            return None
        document = document.get(key)
    return document


def first(values: Iterable[Any]) -> Any:
    """The first value that is not None."""
    return next((value for value in values if value is not None), None)


def fingerprint(kind: str, version: str | None, settings: Mapping[str, Any]) -> str | None:
    """`<kind>-<version>-<8 hex>` of the settings that change behaviour: equal settings, equal string, on any machine.

    None where the server says nothing of its settings: two silences are no agreement.
    """
    if not settings:
        return None
    canonical = json.dumps(settings, sort_keys=True, separators=(",", ":"), default=str).encode()
    return f"{kind}-{version or 'unknown'}-{hashlib.sha256(canonical).hexdigest()[:8]}"
