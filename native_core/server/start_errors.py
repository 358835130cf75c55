"""Why a server does not start: one line on standard error and the exit code of the command that called it."""

from __future__ import annotations


class StartError(ValueError):
    """What is wrong, with the mend."""

    exit_code = 5

    def __init__(self, what: str, *, mend: str = "") -> None:
        super().__init__(" ".join((f"{what}; {mend}" if mend else what).split()))


class UsageError(StartError):
    """Arguments or a model that make no server."""

    exit_code = 2


class InfrastructureError(StartError):
    """A port that is in use, memory that is not there."""

    exit_code = 5
