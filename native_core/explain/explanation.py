"""What every topic gives: text for a terminal, a record for programs, a drawing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Explanation:
    title: str
    text: str
    record: dict[str, Any]  # plain JSON values
    svg: str  # a whole SVG document
