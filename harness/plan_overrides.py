"""What --engine and --workload mean: a name of the plan, a kind, an installed environment, a URL; a name or a file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.plan import Plan, WorkloadPart
from harness.plan_engine import AUTO, EnginePart, Options, base_url
from harness.records.errors import UsageError
from workloads.params import suggest

# What an environment made by `engines install --device cpu` is started with when a plan does not say: without the
# first, vLLM compiles for over a minute; the second keeps SGLang's loop from spinning ahead of a slow CPU.
CPU_ARGS: Mapping[str, tuple[str, ...]] = {
    "vllm": ("--enforce-eager",),
    "sglang": ("--disable-overlap-schedule",),
}
SHARED_OPTIONS = ("kv_tokens", "max_model_len", "max_num_seqs", "max_batched_tokens", "threads")


def choose_engines(
    plan: Plan, wanted: Sequence[str], environments: Mapping[str, str], api_key_env: str | None
) -> tuple[EnginePart, ...]:
    """The engines to run, in the order given; the plan's own when none is."""
    chosen: list[EnginePart] = []
    for word in wanted:
        chosen += [engine for engine in _engines(plan, word, environments, api_key_env) if engine not in chosen]
    return tuple(chosen) or plan.engines


def _engines(plan: Plan, word: str, environments: Mapping[str, str], api_key_env: str | None) -> tuple[EnginePart, ...]:
    named = tuple(engine for engine in plan.engines if engine.name == word)
    if named:
        return named
    if "://" in word:
        return (_behind(word, api_key_env),)
    of_kind = tuple(engine for engine in plan.engines if engine.kind == word)
    if of_kind:
        return of_kind
    if word == "native":
        return (EnginePart(name="native", kind="native", options=_options(plan)),)
    if word in environments:
        return (_installed(plan, word, environments[word]),)
    rows = sorted(name for name, kind in environments.items() if kind == word)
    if len(rows) == 1:
        return (_installed(plan, rows[0], word),)
    if rows:
        raise UsageError(f"--engine {word}: several environments have it", mend=f"name one of {', '.join(rows)}")
    if word in CPU_ARGS:
        raise UsageError(
            f"--engine {word}: no environment has it",
            mend=f"`servescope engines install {word} --device cpu`, or `engines add` one of your own",
        )
    known = list(dict.fromkeys([*(e.name for e in plan.engines), "native", *CPU_ARGS, *sorted(environments)]))
    raise UsageError(f"--engine {word}: no engine of the plan, kind, environment or URL{suggest(word, known)}")


def _behind(url: str, api_key_env: str | None) -> EnginePart:
    """A server that runs already, named after its host and port."""
    try:
        address = base_url(url)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", address.split("://")[1]).strip(".-")[:64]
        return EnginePart(name=name, kind=AUTO, url=address, api_key_env=api_key_env)
    except ValidationError as error:
        message = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise UsageError(f"--engine URL: {message.removeprefix('Value error, ')}") from None
    except ValueError as error:
        raise UsageError(f"--engine URL: {error}") from None


def _installed(plan: Plan, env: str, kind: str) -> EnginePart:
    args = CPU_ARGS.get(kind, ()) if env.endswith("-cpu") else ()
    values: dict[str, Any] = {"name": env, "kind": kind, "env": env, "options": _options(plan), "args": args}
    return EnginePart(**values)


def _options(plan: Plan) -> Options:
    """The sizes of the plan's first engine, so that another engine beside it is comparable; no block size or profile,
    since what one engine accepts another refuses. The pool is rounded down to whole blocks of 128, which all accept."""
    first = next((engine.options for engine in plan.engines if not engine.url), Options())
    sizes = {key: getattr(first, key) for key in SHARED_OPTIONS}
    if sizes["kv_tokens"]:
        sizes["kv_tokens"] = max(sizes["kv_tokens"] // 128, 1) * 128
    return Options(**sizes)


def choose_workloads(plan: Plan, wanted: Sequence[str]) -> tuple[WorkloadPart, ...]:
    """The workloads to send, in the order given; the plan's own when none is."""
    chosen: list[WorkloadPart] = []
    known = {workload.name: workload for workload in plan.workloads}
    for word in wanted:
        part = known.get(word) or _file(word, list(known))
        if part not in chosen:
            chosen.append(part)
    return tuple(chosen) or plan.workloads


def _file(word: str, known: list[str]) -> WorkloadPart:
    path = Path(word)
    if not path.is_file():
        raise UsageError(f"--workload {word}: no workload of the plan and no file{suggest(word, known)}")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.name.split(".jsonl")[0]).strip(".-")[:64] or "workload"
    return WorkloadPart(name=name, file=str(path.resolve()))
