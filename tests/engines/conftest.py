"""Real engines for tests: each started once and shared, one at a time, skipped with the command that enables it.

One at a time, since an idle SGLang spins on a core and would slow whatever runs beside it: asking for another engine
stops the one that is up. Tests are therefore ordered by the engine they use, so that none is started twice, and come
after all others, so that nothing else runs beside an engine.
With SERVESCOPE_REQUIRE_ENGINES=1 a test that would be skipped fails instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.engines.process import EngineProcess, free_port
from harness.engines.protocol import Delta, Endpoint, Engine, EngineConfig, GenerationRequest, LaunchSpec, ModelDir
from harness.engines.registry import adapter
from harness.engines.store import find_engine
from harness.records.errors import ServescopeError

MODEL = os.environ.get("SERVESCOPE_TEST_MODEL", "smollm2-135m")
ORDER = ("native_server", "vllm_server", "sglang_server")
BLOCK = {"native": 32, "vllm": 32, "sglang": 1}
ARGS: dict[str, tuple[str, ...]] = {"vllm": ("--enforce-eager",), "sglang": ("--disable-overlap-schedule",)}
KV_TOKENS, MAX_MODEL_LEN = 8192, 2048


@dataclass(frozen=True)
class Live:
    """A running engine and all that a test needs to talk to it."""

    engine: Engine
    config: EngineConfig
    spec: LaunchSpec
    process: EngineProcess
    endpoint: Endpoint
    log: Path

    def send(self, request: GenerationRequest, *, model: str | None = None) -> tuple[int, list[Delta]]:
        """Status and decoded events of one streamed request."""
        encoded = self.engine.encode(request, model or self.endpoint.model)
        url = self.endpoint.base_url + encoded.path
        with httpx.stream(
            "POST", url, content=encoded.body, headers=dict(encoded.headers), timeout=120, trust_env=False
        ) as response:
            lines = list(response.iter_lines())
            events = [line[5:].strip().encode() for line in lines if line.startswith("data:")]
            return response.status_code, [self.engine.decode(event) for event in events]

    def metric(self, name: str, **labels: str) -> float:
        """The sum over all series called `name` that carry `labels`; 0 if there is none."""
        from prometheus_client.parser import text_string_to_metric_families

        text = httpx.get(f"{self.endpoint.base_url}/metrics", timeout=30, trust_env=False).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


class Slot:
    """Room for one engine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.live: Live | None = None

    def get(self, kind: str) -> Live:
        if self.live is not None and self.live.engine.kind == kind and self.live.process.poll() is None:
            return self.live
        self.close()
        self.live = start(kind, self.folder / f"{kind}-{free_port()}")
        return self.live

    def close(self) -> None:
        live, self.live = self.live, None
        if live is not None:
            live.process.stop()


def start(kind: str, folder: Path) -> Live:
    options: dict[str, Any] = {"block_size": BLOCK[kind], "kv_tokens": KV_TOKENS, "max_model_len": MAX_MODEL_LEN}
    config = EngineConfig(name=kind, kind=kind, options=options, args=ARGS.get(kind, ()))
    model = model_dir()
    if kind != "native":
        try:
            env = find_engine(kind)
        except ServescopeError as error:
            unavailable(str(error))
        config = replace(config, env=env.name, python=env.python)
    port, log = free_port(), folder / "engine.log"
    engine = adapter(kind)
    spec = engine.launch(config, model, port)
    process = EngineProcess(spec, port, log, name=kind).start().wait_ready()
    return Live(engine, config, spec, process, Endpoint(process.base_url, model.name), log)


def model_dir() -> ModelDir:
    from harness.models.store import find_model

    try:
        return find_model(MODEL)
    except ServescopeError as error:
        unavailable(str(error))


def unavailable(why: str) -> Any:
    if os.environ.get("SERVESCOPE_REQUIRE_ENGINES") == "1":
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


@pytest.fixture(scope="session")
def engine_slot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slot]:
    slot = Slot(tmp_path_factory.mktemp("engines"))
    yield slot
    slot.close()


@pytest.fixture
def native_server(engine_slot: Slot) -> Live:
    return engine_slot.get("native")


@pytest.fixture
def vllm_server(engine_slot: Slot) -> Live:
    return engine_slot.get("vllm")


@pytest.fixture
def sglang_server(engine_slot: Slot) -> Live:
    return engine_slot.get("sglang")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of real engines come last of all, in the order of the engine they share; those that share none first."""
    here = Path(__file__).parent

    def rank(item: pytest.Item) -> int:
        if here not in item.path.parents:
            return -2
        names = getattr(item, "fixturenames", ())
        return next((index for index, name in enumerate(ORDER) if name in names), -1)

    items.sort(key=rank)  # stable: everything else keeps its place
