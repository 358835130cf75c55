"""Parameters of a family: declared once, checked before anything is generated, every error one line."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workloads.model import WorkloadError

Count = Annotated[int, Field(ge=0, le=1_000_000)]
Some = Annotated[int, Field(ge=1, le=1_000_000)]
P = TypeVar("P", bound="Params")


class Params(BaseModel):
    """Base of every family's parameters. Unknown keys and wrong types are errors; booleans are no integers."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def parse(kind: type[P], given: Mapping[str, Any], where: str) -> P:
    """The checked parameters with every default filled in. Raises WorkloadError naming the key and the nearest one."""
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        if first["type"] == "extra_forbidden":
            raise WorkloadError(f"{where}: unknown parameter {key!r}{suggest(key, list(kind.model_fields))}") from None
        message = first["msg"].removeprefix("Value error, ")
        raise WorkloadError(f"{where}: {key}: {message}" if key else f"{where}: {message}") from None


def suggest(key: str, known: list[str]) -> str:
    """The end of an error line about an unknown name: the nearest known one, else all of them."""
    near = get_close_matches(key, known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known) or 'none'}"
