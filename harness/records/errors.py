"""Errors that end a command: one line for the person, one exit code for the job that called it."""

from __future__ import annotations


class ServescopeError(Exception):
    """What is wrong and where, with the mend. Subclasses fix the exit code."""

    exit_code = 2

    def __init__(self, what: str, *, mend: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.mend = mend

    def __str__(self) -> str:
        line = f"{self.what}; {self.mend}" if self.mend else self.what
        return " ".join(line.split())


class UsageError(ServescopeError):
    """Wrong arguments, a plan, file or model that is missing or malformed, a foreign schema."""

    exit_code = 2


class InconclusiveError(ServescopeError):
    """Not enough evidence for an answer, or a fault that did not take."""

    exit_code = 3


class InvalidRunError(ServescopeError):
    """The run cannot be judged: void, interrupted, or from another environment."""

    exit_code = 4


class InfrastructureError(ServescopeError):
    """An engine that would not start or died, an unreachable URL, a port or a disk that is not free."""

    exit_code = 5
