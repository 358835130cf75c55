"""`python -m native_core --model DIR`: the native core as an OpenAI-compatible server."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """0 after a signal, 2 for arguments or a model that make no server, 5 for a port, memory, or a dead engine."""
    from native_core.server.options import parse_options

    options = parse_options(argv)
    # The model's libraries take a while to import: not before the arguments are known to be good.
    from native_core.server.launch import run
    from native_core.server.start_errors import StartError

    try:
        return run(options)
    except StartError as error:
        print(f"native core: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
