"""A cache of the tests' own, so that what a person has installed neither helps nor hinders."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.models.store import get_model


@pytest.fixture(scope="package")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """SERVESCOPE_CACHE with the model `tiny` in it, for this process and those it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVESCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))
        get_model("tiny")
        yield
