"""`servescope`: argument parsing only. Each command imports its layer when it is called, so that --help is quick."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

from harness.cli import commands
from harness.records.errors import ServescopeError

INTERRUPTED = 4

# typer carries its own copy of click since 0.16 and exports only the leaves of its exceptions; the two bases that
# matter here are the parents of BadParameter in both arrangements.
_UsageError: type[Any] = typer.BadParameter.__mro__[1]
_ClickException: type[Any] = typer.BadParameter.__mro__[2]


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the console script. Every failure is one line on stderr and an exit code of the documented set."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    application = typer.main.get_command(commands.app)
    try:
        result: Any = application.main(args=arguments, prog_name="servescope", standalone_mode=False)
    except ServescopeError as error:
        return _fail(str(error), error.exit_code)
    except typer.Exit as error:
        return int(error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            return 0
        where = error.ctx.command_path if error.ctx else "servescope"
        return _fail(f"{error.format_message()} (see `{where} --help`)", 2)
    except _ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ValueError as error:
        # workloads and native_core raise their own ValueErrors with the mend; anything else is a defect of ours.
        if type(error).__module__.split(".")[0] in {"workloads", "native_core"}:
            return _fail(" ".join(str(error).split()), 2)
        raise
    return result if isinstance(result, int) else 0


def _fail(line: str, code: int) -> int:
    print(f"servescope: error: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
