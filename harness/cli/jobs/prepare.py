"""Everything a run needs, checked before the first engine starts: plan, model, workloads, environments, room."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from harness.engines.protocol import EngineConfig, ModelDir
from harness.engines.registry import adapter
from harness.plan import AUTO, Plan, load_plan
from harness.plan_engine import EnginePart
from harness.records.errors import InfrastructureError, UsageError
from harness.records.manifest import ModelInfo
from workloads.model import Workload
from workloads.vocabulary import Vocabulary

MIN_FREE_BYTES = 200_000_000  # a run of a few thousand requests writes tens of MB; less than this is asking for trouble


@dataclass(frozen=True)
class RunOptions:
    """The command line of `run`."""

    plan: Path | None = None
    engines: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    model: str | None = None
    repeats: int | None = None
    workers: int = 1
    api_key_env: str | None = None
    redact: bool = False
    out: Path = Path("runs")


@dataclass(frozen=True)
class Prepared:
    """A run that can start. `workloads` and `warmups` go together, one per [[workload]]."""

    plan: Plan
    model: ModelDir
    model_info: ModelInfo
    vocabulary: Vocabulary
    workloads: tuple[Workload, ...]
    configs: tuple[EngineConfig, ...]
    options: RunOptions


def prepare(options: RunOptions) -> Prepared:
    """Resolve the command line into a run. UsageError or InfrastructureError, one line, before anything is started."""
    from harness.engines.store import list_engines
    from harness.models.store import describe_model, find_model

    installed = list_engines()
    environments = {row.name: row.python for row in installed}
    kinds = {row.name: row.kind for row in installed}
    plan = load_plan(options.plan).with_overrides(
        engines=options.engines,
        workloads=options.workloads,
        model=options.model,
        repeats=options.repeats,
        api_key_env=options.api_key_env,
        environments=kinds,
    )
    model = find_model(plan.model)
    vocabulary = Vocabulary.of(model.path)
    workloads = tuple(part.build(plan.seed, vocabulary) for part in plan.workloads)
    for engine in plan.engines:
        if engine.kind != AUTO:
            plan.check_salt(engine, adapter(engine.kind).capabilities.salt)
        for workload in workloads:
            plan.check_fits(workload, engine)
    _check_room(options.out)
    return Prepared(
        plan=plan,
        model=model,
        model_info=describe_model(model),
        vocabulary=vocabulary,
        workloads=workloads,
        configs=tuple(_config(plan, engine, environments) for engine in plan.engines),
        options=options,
    )


def _config(plan: Plan, engine: EnginePart, environments: Mapping[str, str]) -> EngineConfig:
    if engine.url:
        return engine.config(plan.run.evidence)
    if engine.env is not None and engine.env not in environments:
        raise UsageError(
            f"engine {engine.name!r}: no environment is called {engine.env!r}",
            mend=f"`servescope engines install {engine.kind} --device cpu`, or see `servescope engines list`",
        )
    python = environments[engine.env] if engine.env else None
    return engine.config(plan.run.evidence, python=python)


def _check_room(out: Path) -> None:
    place = next(path for path in (out.resolve(), *out.resolve().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free < MIN_FREE_BYTES:
        raise InfrastructureError(
            f"{place} has {free // 1_000_000} MB free, a run needs {MIN_FREE_BYTES // 1_000_000}",
            mend="free some space or choose another --out",
        )


def resolved(config: EngineConfig, kind: str) -> EngineConfig:
    """The configuration with `auto` replaced by what answered."""
    return replace(config, kind=kind) if config.kind == AUTO else config
