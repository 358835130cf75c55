"""`servescope workload make | describe | validate`: workload files without a run."""

from __future__ import annotations

import json as jsonlib
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from harness.records.errors import UsageError
from workloads.model import Load, Request, Workload, WorkloadError
from workloads.vocabulary import Vocabulary

T = TypeVar("T")

workload_app = typer.Typer(help="What is sent: make, describe and check workload files.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
File = Annotated[Path, typer.Argument(help="A workload file (workload.jsonl.gz).")]


@workload_app.command("make")
def make(
    source: Annotated[str, typer.Argument(help="A family (prefix_hit, long_prompt, multi_turn) or a plan file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")],
    name: Annotated[str | None, typer.Option("--workload", help="Of a plan: which workload.")] = None,
    model: Annotated[str | None, typer.Option(help="Model name or directory; its tokenizer gives the ids.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; a plan's own, else 7.")] = None,
    load: Annotated[str | None, typer.Option(help="Of a family, e.g. 'mode=poisson rate=2'.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Of a family: KEY=VALUE of a parameter; may be repeated.")
    ] = None,
    json: Json = False,
) -> int:
    """Write a workload file; the same one for the same arguments, on every machine."""
    from workloads.file import write_workload

    workload = (_from_plan if Path(source).is_file() else _from_family)(source, name, model, seed, load, settings or [])
    digest = _usage(lambda: write_workload(workload, out))
    if json:
        typer.echo(jsonlib.dumps({"file": str(out), "sha256": digest, **summary(workload)}))
    else:
        typer.echo(f"{out}: {len(workload.requests)} requests, sha256 of its lines {digest}")
    return 0


@workload_app.command("describe")
def describe(file: File, json: Json = False) -> int:
    """What a workload file asks of an engine."""
    from workloads.file import read_workload

    facts = summary(_usage(lambda: read_workload(file)))
    typer.echo(jsonlib.dumps(facts) if json else _text(facts))
    return 0


@workload_app.command("validate")
def validate(
    file: File,
    model: Annotated[str | None, typer.Option(help="Also check the ids against this model's tokenizer.")] = None,
    json: Json = False,
) -> int:
    """Check every line, and that each request shares with earlier ones exactly what it promises."""
    from workloads.file import read_workload

    workload = _usage(lambda: read_workload(file))
    check_promises(workload, str(file))
    if model is not None:
        vocabulary = _vocabulary(model)
        if workload.tokenizer_sha256 not in (None, vocabulary.tokenizer_sha256):
            raise UsageError(
                f"{file} was made for another tokenizer than {model} has", mend="make it again with --model"
            )
    if json:
        typer.echo(jsonlib.dumps({"file": str(file), "valid": True, "requests": len(workload.requests)}))
    else:
        typer.echo(f"{file}: {len(workload.requests)} requests, all as promised")
    return 0


def check_promises(workload: Workload, where: str) -> None:
    """Raise UsageError unless shared_tokens of each request is the longest prefix it has in common with what its row
    order sends before it. Answers that are known only at run time count as shared by the requests that repeat them,
    so a prompt with one is checked up to its first answer only."""
    from harness.records.prefixes import longest_prefixes

    if workload.family not in {"prefix_hit", "long_prompt", "multi_turn", "warmup"}:
        return  # an imported workload promises nothing
    rows = [(request.request_id, _known_ids(workload, request), ()) for request in workload.requests]
    for request, (earlier, tokens) in zip(workload.requests, longest_prefixes(rows), strict=True):
        known = len(_known_ids(workload, request))
        if tokens != min(request.shared_tokens, known):
            raise UsageError(
                f"{where}: {request.request_id} promises {request.shared_tokens} shared tokens, "
                f"it shares {tokens} with {earlier or 'no earlier request'}",
                mend="make the file again",
            )


def _known_ids(workload: Workload, request: Request) -> tuple[int, ...]:
    ids: list[int] = []
    for part in request.prompt:
        if not isinstance(part, str):
            break
        ids += workload.segments[part]
    return tuple(ids)


def summary(workload: Workload) -> dict[str, Any]:
    """Counts and totals in tokens; prompts with run-time answers count those at their max_tokens."""
    from workloads.lengths import longest, prompt_lengths

    lengths = prompt_lengths(workload)
    classes: dict[str, dict[str, int]] = {}
    for request, length in zip(workload.requests, lengths, strict=True):
        row = classes.setdefault(request.cache_class, {"requests": 0, "prompt_tokens": 0, "shared_tokens": 0})
        row["requests"] += 1
        row["prompt_tokens"] += length
        row["shared_tokens"] += request.shared_tokens
    arrivals = [request.arrival_s for request in workload.requests if request.arrival_s is not None]
    return {
        "name": workload.name,
        "family": workload.family,
        "seed": workload.seed,
        "generator": workload.generator,
        "load": {"mode": workload.load.mode, **workload.load.params},
        "params": dict(workload.params),
        "requests": len(workload.requests),
        "sessions": len({request.session_id for request in workload.requests}),
        "prompt_tokens": sum(lengths),
        "prompt_tokens_range": [min(lengths), max(lengths)],
        "max_output_tokens": sum(request.max_tokens for request in workload.requests),
        "shared_tokens": sum(request.shared_tokens for request in workload.requests),
        "longest_context": longest(workload),
        "last_arrival_s": max(arrivals) if arrivals else None,
        "classes": classes,
    }


def _text(facts: dict[str, Any]) -> str:
    low, high = facts["prompt_tokens_range"]
    load = " ".join(f"{key} {value:g}" if key != "mode" else str(value) for key, value in facts["load"].items())
    last = "" if facts["last_arrival_s"] is None else f", last arrival at {facts['last_arrival_s']:.1f} s"
    lines = [
        f"{facts['name']} ({facts['family']}, seed {facts['seed']}, {facts['generator']})",
        f"  load      {load}{last}",
        f"  requests  {facts['requests']} in {facts['sessions']} sessions",
        f"  prompts   {facts['prompt_tokens']:,} tokens ({low:,} to {high:,} each)",
        f"  sharing   {facts['shared_tokens']:,} of them sent before",
        f"  answers   up to {facts['max_output_tokens']:,} tokens",
        f"  context   {facts['longest_context']:,} tokens at most",
        "  class     requests   prompt tokens   sent before",
    ]
    lines += [
        f"  {name:8}  {row['requests']:8,}  {row['prompt_tokens']:14,}  {row['shared_tokens']:12,}"
        for name, row in facts["classes"].items()
    ]
    return "\n".join(lines)


def _from_plan(
    source: str, name: str | None, model: str | None, seed: int | None, load: str | None, settings: list[str]
) -> Workload:
    from harness.plan import load_plan

    if load or settings:
        raise UsageError("--load and --set belong to a family", mend="change the plan instead")
    plan = load_plan(Path(source))
    chosen = plan.with_overrides(workloads=[name] if name else []).workloads
    if len(chosen) != 1:
        names = ", ".join(part.name for part in chosen)
        raise UsageError(f"{source} has several workloads", mend=f"name one with --workload: {names}")
    return chosen[0].build(plan.seed if seed is None else seed, _vocabulary(model or plan.model))


def _from_family(
    source: str, name: str | None, model: str | None, seed: int | None, load: str | None, settings: list[str]
) -> Workload:
    from workloads.registry import check, generate

    params = dict(_setting(word) for word in settings)
    words = dict(_setting(word) for word in (load or "").replace(",", " ").split())
    entry = Load(str(words.pop("mode", "")), words) if load else None
    _usage(lambda: check(source, params, entry, source))  # before a model is looked for
    vocabulary = _vocabulary(model or "smollm2-135m")
    return _usage(
        lambda: generate(
            source,
            name=name or source,
            seed=7 if seed is None else seed,
            params=params,
            load=entry,
            vocabulary=vocabulary,
        )
    )


def _setting(word: str) -> tuple[str, Any]:
    """KEY=VALUE with a TOML value; a bare word is a string."""
    key, equals, text = word.partition("=")
    if not equals or not key:
        raise UsageError(f"{word!r} is no KEY=VALUE")
    try:
        return key, tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return key, text


def _vocabulary(model: str) -> Vocabulary:
    path = Path(model)
    if not (path / "tokenizer.json").is_file():
        from harness.models.store import find_model

        path = find_model(model).path
    return _usage(lambda: Vocabulary.of(path))


def _usage(act: Callable[[], T]) -> T:
    """Run it; a WorkloadError becomes the error of a command."""
    try:
        return act()
    except WorkloadError as error:
        raise UsageError(str(error)) from None
