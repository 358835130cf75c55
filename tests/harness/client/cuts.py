"""Cutting a stream at arbitrary places."""

from __future__ import annotations

from itertools import pairwise


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(at % (len(data) + 1) for at in cuts)})
    return [data[a:b] for a, b in pairwise(edges)]
