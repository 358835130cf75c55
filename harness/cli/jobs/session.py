"""One engine under test, started or already there: process, endpoint and what it says about itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.cli.jobs.prepare import resolved
from harness.cli.live import LiveView
from harness.engines.detect import check_serves, detect_kind
from harness.engines.openai import check_model
from harness.engines.options import redacted
from harness.engines.process import EngineProcess, free_port
from harness.engines.protocol import Endpoint, Engine, EngineConfig, ModelDir
from harness.engines.registry import adapter
from harness.plan import AUTO
from harness.records.errors import UsageError
from harness.records.manifest import EngineInfo


@dataclass(frozen=True)
class Session:
    """An engine that answers. `process` is None for a server that was there before."""

    config: EngineConfig
    engine: Engine
    endpoint: Endpoint
    info: EngineInfo
    process: EngineProcess | None
    log: Path | None


@contextmanager
def session(config: EngineConfig, model: ModelDir, log: Path, view: LiveView) -> Iterator[Session]:
    """Start or reach the engine, describe it, and stop it again if it was started here."""
    if config.url is not None:
        yield _existing(config, model)
        return
    engine = adapter(config.kind)
    port = free_port()
    spec = engine.launch(config, model, port)
    view.note(f"{config.name}: starting")
    with EngineProcess(spec, port, log, name=config.name).start() as process:
        process.wait_ready()
        endpoint = Endpoint(base_url=process.base_url, model=model.name)
        info = engine.describe(endpoint, log=log)
        info = info.model_copy(
            update={
                "name": config.name,
                "started_by_us": True,
                "pid": process.pid,
                "flags": redacted(spec.argv[1:]),
                "environ": dict(spec.environ),
            }
        )
        view.note(f"{config.name}: {info.kind} {info.version or ''} ready after {process.ready_s or 0.0:.0f} s")
        yield Session(config, engine, endpoint, info, process, log)


def _existing(config: EngineConfig, model: ModelDir) -> Session:
    assert config.url is not None
    key = None
    if config.api_key_env:
        key = os.environ.get(config.api_key_env)
        if not key:
            raise UsageError(
                f"engine {config.name!r}: the environment variable {config.api_key_env} is not set",
                mend=f"export {config.api_key_env}=…",
            )
    endpoint = Endpoint(base_url=config.url, model=model.name, api_key=key)
    kind = config.kind
    if kind == AUTO:
        kind = detect_kind(endpoint)
    else:
        check_serves(endpoint, kind)
    config = resolved(config, kind)
    engine = adapter(kind)
    check_model(endpoint)
    info = engine.describe(endpoint).model_copy(update={"name": config.name, "url": config.url})
    return Session(config, engine, endpoint, info, None, None)
