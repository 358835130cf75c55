"""Ctrl-C in a run: the first asks for an orderly end with everything kept, the second gives up waiting."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_interrupt(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Iterator[None]:
    """While inside, SIGINT, SIGTERM and SIGHUP (a closed terminal) call `stop` once; a second SIGINT raises
    KeyboardInterrupt as usual."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def first() -> None:
        for number in signals:
            loop.remove_signal_handler(number)
        stop()

    for number in signals:
        loop.add_signal_handler(number, first)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
