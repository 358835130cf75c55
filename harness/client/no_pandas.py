"""Keeps pandas out of a worker. pyarrow imports it, if it is installed, the first time a list becomes an array, to ask
whether the list is a Series: 0.3 s of CPU and 50 MB for an answer that is always no.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is kept out of client workers", name=name)
        return None


def keep_pandas_out() -> None:
    """For a worker's process only: from here on, `import pandas` fails."""
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NoPandas)
