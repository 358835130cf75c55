"""The version of this tool, as every artefact states it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def tool_version() -> str:
    try:
        return version("servescope")
    except PackageNotFoundError:  # run from a tree that is not installed
        return "0+unknown"
