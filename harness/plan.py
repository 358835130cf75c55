"""Plans: what to run, against which engines, as one strict TOML file. Command line beats plan beats defaults."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from harness.client.job import Timeouts
from harness.plan_engine import AUTO, EnginePart, Name, Options, Part, Seconds
from harness.plan_text import emit, locate
from harness.records.errors import UsageError
from harness.records.manifest import CacheState, EvidenceProfile
from workloads.file import read_workload
from workloads.lengths import longest
from workloads.model import Load, Workload, WorkloadError
from workloads.params import suggest
from workloads.registry import check, generate
from workloads.vocabulary import Vocabulary

__all__ = ["AUTO", "EnginePart", "Plan", "WorkloadPart", "load_plan", "parse_plan", "quickstart"]

QUICKSTART = Path(__file__).parent / "plans" / "quickstart.toml"


class Slo(Part):
    """Upper limits in seconds that a good request keeps; each may be left out."""

    ttft_s: Seconds | None = None
    tpot_s: Seconds | None = None
    e2e_s: Seconds | None = None


class PlanTimeouts(Part):
    """Seconds; see harness.client.job.Timeouts."""

    connect: Seconds = 5.0
    first_token: Seconds = 60.0
    between_tokens: Seconds = 30.0
    total: Seconds = 300.0

    @model_validator(mode="after")
    def _total_is_most(self) -> PlanTimeouts:
        if self.total < max(self.first_token, self.between_tokens):
            raise ValueError("total is below first_token or between_tokens, which could then never be reached")
        return self


class RunPart(Part):
    repeats: Annotated[int, Field(ge=1, le=1000)] = 1
    launch: Literal["per-plan", "per-cell"] = "per-plan"
    cache: CacheState = "flushed"
    evidence: EvidenceProfile = "full"
    warmup_s: Annotated[float, Field(ge=0.0, le=3600.0)] = 3.0
    scrape_s: Annotated[float, Field(ge=0.05, le=60.0)] = 0.5
    timeout_s: PlanTimeouts = PlanTimeouts()

    @model_validator(mode="after")
    def _fresh_means_restarted(self) -> RunPart:
        if self.cache == "fresh" and self.launch != "per-cell":
            raise ValueError('cache = "fresh" is a new process for each cell; set launch = "per-cell", or "flushed"')
        return self


class WorkloadPart(Part):
    """One [[workload]]: a family with its parameters and load, or a workload file, which carries both."""

    name: Name
    family: str | None = None
    file: str | None = None
    seed: int | None = None  # the plan's when left out
    load: dict[str, Any] | None = None
    params: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> WorkloadPart:
        if (self.family is None) == (self.file is None):
            raise ValueError("give either family or file")
        if self.file is not None:
            if self.load is not None or self.params is not None or self.seed is not None:
                raise ValueError("a workload file carries its own seed, load and params")
            return self
        try:
            params, load = check(str(self.family), self.params or {}, _load(self.load), "")
        except WorkloadError as error:
            raise ValueError(str(error).removeprefix(": ")) from None
        # Every default is written out from here on, so that a run's plan.toml needs no other version's defaults.
        object.__setattr__(self, "params", params.model_dump(mode="json"))
        object.__setattr__(self, "load", {"mode": load.mode, **load.params})
        return self

    def build(self, seed: int, vocabulary: Vocabulary) -> Workload:
        """Generate or read it. `seed` is the plan's. UsageError for a file that is none."""
        try:
            if self.file is not None:
                return read_workload(Path(self.file))
            return generate(
                str(self.family),
                name=self.name,
                seed=seed if self.seed is None else self.seed,
                params=self.params or {},
                load=_load(self.load),
                vocabulary=vocabulary,
            )
        except WorkloadError as error:
            raise UsageError(str(error)) from None


class Plan(Part):
    schema_version: Literal[1] = Field(default=1, alias="schema")
    name: Name
    seed: int = 7
    model: str = "smollm2-135m"
    slo: Slo = Slo()
    run: RunPart = RunPart()
    engines: Annotated[tuple[EnginePart, ...], Field(alias="engine", min_length=1)]
    workloads: Annotated[tuple[WorkloadPart, ...], Field(alias="workload", min_length=1)]

    @field_validator("engines", "workloads", mode="before")
    @classmethod
    def _tables(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _consistent(self) -> Plan:
        for what, parts in (("engine", self.engines), ("workload", self.workloads)):
            names = [part.name for part in parts]
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice:
                raise ValueError(f"two {what}s are called {twice!r}; cells are named by it")
        for engine in self.engines:
            if engine.url and self.run.cache == "fresh":
                raise ValueError(f"engine {engine.name!r} runs already, its cache cannot be fresh; use flushed or warm")
        return self

    def with_overrides(
        self,
        *,
        engines: Sequence[str] = (),
        workloads: Sequence[str] = (),
        model: str | None = None,
        repeats: int | None = None,
        api_key_env: str | None = None,
        environments: Mapping[str, str] | None = None,
    ) -> Plan:
        """The plan as the command line changes it. `environments`: name -> kind of what is installed.

        An engine is a NAME of the plan, a kind, an environment or a URL; a workload is a NAME of the plan or a file.
        Raises UsageError for a name that is none of these.
        """
        from harness.plan_overrides import choose_engines, choose_workloads

        document: dict[str, Any] = {
            "engines": choose_engines(self, engines, environments or {}, api_key_env),
            "workloads": choose_workloads(self, workloads),
            "model": self.model if model is None else model,
            "run": self.run if repeats is None else self.run.model_copy(update={"repeats": repeats}),
        }
        changed = self.model_copy(update=document)
        return parse_plan(changed.to_toml(), "the plan with the command line's changes")

    def to_toml(self) -> str:
        """The whole plan with every default written out; `parse_plan` reads it back as an equal plan."""
        return emit(self.model_dump(by_alias=True, mode="json"))

    def timeouts(self) -> Timeouts:
        return Timeouts(**self.run.timeout_s.model_dump())

    def slo_limits(self) -> dict[str, float]:
        return self.slo.model_dump(exclude_none=True)

    def check_fits(self, workload: Workload, engine: EnginePart, max_model_len: int | None = None) -> None:
        """Raise UsageError when a prompt and its answer exceed the engine's context (the plan's, or as it reports)."""
        limit = max_model_len or engine.options.max_model_len
        need = longest(workload)
        if limit is not None and need > limit:
            raise UsageError(
                f"workload {workload.name!r} needs {need} tokens of context, engine {engine.name!r} has {limit}",
                mend="raise max_model_len or shorten the prompts",
            )

    def check_salt(self, engine: EnginePart, can_salt: bool) -> None:
        """Raise UsageError for a salted cache on an engine whose adapter says that it takes no salt."""
        if self.run.cache == "salted" and not can_salt:
            raise UsageError(
                f"engine {engine.name!r} ({engine.kind}) takes no cache salt", mend='set cache = "flushed"'
            )


def _load(given: Mapping[str, Any] | None) -> Load | None:
    if given is None:
        return None
    return Load(str(given.get("mode", "")), {key: value for key, value in given.items() if key != "mode"})


def quickstart() -> Plan:
    """The plan that ships with servescope: the native core under three workloads."""
    return load_plan(QUICKSTART)


def load_plan(path: Path | None) -> Plan:
    """Read a plan, the quickstart when None. UsageError, one line, with the place in the file."""
    if path is None:
        return quickstart()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise UsageError(f"plan {path} cannot be read: {reason}", mend="name a plan file (TOML)") from None
    return parse_plan(text, str(path), base=path.parent)


def parse_plan(text: str, where: str, base: Path | None = None) -> Plan:
    """A plan from TOML. `base`: the directory that relative workload files start from."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: {error}") from None
    if document.get("schema", 1) != 1 or isinstance(document.get("schema"), bool):
        raise UsageError(f"{where}: plan schema {document['schema']!r}, this servescope reads 1")
    try:
        plan = Plan.model_validate(document)
    except ValidationError as error:
        raise _usage_error(error, text, where) from None
    if base is None:
        return plan
    anchored = [w.model_copy(update={"file": str((base / w.file).resolve())}) if w.file else w for w in plan.workloads]
    return plan.model_copy(update={"workloads": tuple(anchored)})


def _usage_error(error: ValidationError, text: str, where: str) -> UsageError:
    first = error.errors(include_url=False, include_input=False)[0]
    loc = first["loc"]
    message = first["msg"].removeprefix("Value error, ")
    key = str(loc[-1]) if loc else ""
    # A check over several keys is reported at their table; the key that its message begins with or quotes is the place.
    quoted = re.match(r"(\w+)(?= = |: | is )|.*?'(\w+)'", message) if first["type"] == "value_error" else None
    line, table = locate(text, (*loc, quoted[1] or quoted[2]) if quoted else loc)
    place = f"{where}:{line}" if line else where
    if first["type"] == "extra_forbidden":
        return UsageError(f"{place}: unknown key {key!r} in {table}{suggest(key, _keys_at(loc[:-1]))}")
    named = f"{key}: " if loc and isinstance(loc[-1], str) and not quoted else ""
    return UsageError(f"{place}: {table}: {named}{message}")


def _keys_at(loc: Sequence[str | int]) -> list[str]:
    """The keys that the part of a plan at `loc` knows, as a plan spells them."""
    kinds: dict[tuple[str, ...], type[Part]] = {
        (): Plan,
        ("slo",): Slo,
        ("run",): RunPart,
        ("run", "timeout_s"): PlanTimeouts,
        ("engine",): EnginePart,
        ("engine", "options"): Options,
        ("workload",): WorkloadPart,
    }
    kind = kinds.get(tuple(part for part in loc if isinstance(part, str)), Plan)
    return [field.alias or name for name, field in kind.model_fields.items()]
