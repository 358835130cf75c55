"""The command tree, grouped as people use it: drive, judge, learn, set up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.workload import workload_app

DRIVE, JUDGE, LEARN, SET_UP = "Drive", "Judge", "Learn", "Set up"

app = typer.Typer(
    help="How does this LLM engine behave, did it get worse, and why?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
model_app = typer.Typer(help="Get models.", no_args_is_help=True)
engines_app = typer.Typer(help="Real engines, each in an environment of its own.", no_args_is_help=True)
serve_app = typer.Typer(help="Serve a model.", no_args_is_help=True)
app.add_typer(model_app, name="model", rich_help_panel=SET_UP)
app.add_typer(workload_app, name="workload", rich_help_panel=DRIVE)
app.add_typer(engines_app, name="engines", rich_help_panel=SET_UP)
app.add_typer(serve_app, name="serve", rich_help_panel=SET_UP)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        from harness.records.version import tool_version

        typer.echo(f"servescope {tool_version()}")
        raise typer.Exit


@app.command(rich_help_panel=DRIVE)
def look(
    url: Annotated[str, typer.Argument(help="A running server, e.g. http://127.0.0.1:8000")],
    engine: Annotated[str | None, typer.Option(help="vllm, sglang, native or openai; detected when left out.")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable that holds the API key.")] = None,
    seconds: Annotated[float, typer.Option(help="How long to watch.", min=0.5, max=8.0)] = 4.0,
    json: Json = False,
) -> int:
    """What is this engine doing right now? Sends no load, takes at most ten seconds."""
    from harness.cli.look import look_command

    return look_command(url, kind=engine, api_key_env=api_key_env, seconds=seconds, as_json=json)


@app.command(rich_help_panel=DRIVE)
def run(
    plan: Annotated[Path | None, typer.Argument(help="A plan file; the quickstart when left out.")] = None,
    engine: Annotated[
        list[str] | None, typer.Option("--engine", help="NAME of the plan, a kind, an environment, or a URL.")
    ] = None,
    workload: Annotated[
        list[str] | None, typer.Option("--workload", help="NAME of the plan, or a workload file.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model name, directory or hub name.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Cells per engine and workload.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Client processes.")] = 1,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the API key of --engine URL.")
    ] = None,
    redact_prompts: Annotated[bool, typer.Option(help="Keep prompts, answers and token ids out of the run.")] = False,
    out: Annotated[Path, typer.Option(help="Where the run directory is made.")] = Path("runs"),
    json: Json = False,
) -> int:
    """How does it behave under this workload, and is that what it should do?"""
    from harness.cli.jobs.run import RunOptions, run_command

    return run_command(
        RunOptions(
            plan=plan,
            engines=tuple(engine or ()),
            workloads=tuple(workload or ()),
            model=model,
            repeats=repeats,
            workers=workers,
            api_key_env=api_key_env,
            redact=redact_prompts,
            out=out,
        ),
        as_json=json,
    )


@app.command(rich_help_panel=JUDGE)
def report(
    directory: Annotated[Path, typer.Argument(help="A run or cell directory.")],
    json: Json = False,
) -> int:
    """Every report again, from artefacts alone; no engine is needed."""
    from harness.cli.jobs.report import report_command

    return report_command(directory, as_json=json)


@app.command(rich_help_panel=LEARN)
def predict(
    source: Annotated[Path, typer.Argument(metavar="WORKLOAD|TRACE", help="A workload file or a Mooncake trace.")],
    profile: Annotated[str | None, typer.Option(help="Whose rules, e.g. vllm-0.32.0 (the default).")] = None,
    kv_tokens: Annotated[str | None, typer.Option(help="Size of the KV cache in tokens; inf is the default.")] = None,
    block_size: Annotated[int | None, typer.Option(help="Tokens a block: 16, or a trace's own.")] = None,
    json: Json = False,
) -> int:
    """Which tokens must hit, what is preempted and how full the cache gets; nothing is sent."""
    from harness.cli.predict import predict_command

    return predict_command(source, profile=profile, kv_tokens=kv_tokens, block_size=block_size, as_json=json)


@app.command(rich_help_panel=LEARN)
def explain(
    topic: Annotated[str, typer.Argument(help="block-table, step or metrics.")],
    svg: Annotated[Path | None, typer.Option(help="Draw it into this file, too.")] = None,
    json: Json = False,
) -> int:
    """How an engine's parts work, on small examples that its own code computes."""
    from harness.cli.explain import explain_command

    return explain_command(topic, svg=svg, as_json=json)


@model_app.command("get")
def model_get(
    name: Annotated[str, typer.Argument(help="smollm2-135m, tiny, a directory, or a hub name.")],
    json: Json = False,
) -> int:
    """Get a model as an ordinary Hugging Face directory, the same weights for every engine."""
    from harness.cli.setup import model_get_command

    return model_get_command(name, as_json=json)


@engines_app.command("list")
def engines_list(json: Json = False) -> int:
    """Environments that `run` can start engines from."""
    from harness.cli.setup import engines_list_command

    return engines_list_command(as_json=json)


@engines_app.command("doctor")
def engines_doctor(json: Json = False) -> int:
    """Check each environment and this machine; every finding with its mend."""
    from harness.cli.setup import engines_doctor_command

    return engines_doctor_command(as_json=json)


@engines_app.command("install")
def engines_install(
    engine: Annotated[str, typer.Argument(help="vllm or sglang.")],
    device: Annotated[str, typer.Option(help="cpu; for a GPU add your own environment with `engines add`.")] = "cpu",
    version: Annotated[str | None, typer.Option(help="Release; the newest with a recipe when left out.")] = None,
    torch_index: Annotated[str | None, typer.Option(help="Index URL that carries PyTorch's CPU builds.")] = None,
    json: Json = False,
) -> int:
    """Install a CPU build of a real engine into the user's cache."""
    from harness.cli.setup import engines_install_command

    return engines_install_command(engine, device=device, version=version, torch_index=torch_index, as_json=json)


@engines_app.command("add")
def engines_add(
    name: Annotated[str, typer.Argument(help="The name that plans use.")],
    kind: Annotated[str, typer.Option(help="vllm or sglang.")],
    python: Annotated[Path, typer.Option(help="The interpreter of an environment where the engine is installed.")],
    json: Json = False,
) -> int:
    """Add an environment of your own, e.g. one with a GPU build."""
    from harness.cli.setup import engines_add_command

    return engines_add_command(name, kind=kind, python=python, as_json=json)


@serve_app.command(
    "native", context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def serve_native(context: typer.Context) -> int:
    """Serve a model with the native core; options as `python -m native_core --help` prints them."""
    from harness.cli.setup import serve_native_command

    return serve_native_command(context.args)
