"""Matrix products and other shared work on a fixed number of threads that sleep between them.

BLAS has threads of its own, but they wait by spinning: on two cores with one other busy process (a load generator, say)
a decode step took 4 to 10 times as long as with one thread. Here BLAS runs on one thread, each product is split by
rows of the weight, and a helper that waits for its share sleeps on a lock. numpy lets go of the interpreter meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from threading import Lock, Thread

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

Array = NDArray[np.float32]
Job = Callable[[], object]
MIN_SHARE = 1 << 19  # multiply-adds of a thread below which its waking costs more than it saves


@dataclass
class _Helper:
    """One thread: `begin` is released with a job in place, `end` when the job is done or has failed."""

    job: Job | None = None
    failure: Exception | None = None
    begin: Lock = field(default_factory=Lock)
    end: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.begin.acquire()
        self.end.acquire()

    def loop(self) -> None:
        while True:
            self.begin.acquire()
            try:
                self._work()
            except Exception as error:  # kept for the caller, which would wait for ever if this thread ended
                self.failure = error
            self.end.release()

    def _work(self) -> None:
        """In a function of its own: its names would keep the last arrays alive while the engine idles."""
        assert self.job is not None
        job, self.job = self.job, None
        job()

    def wait(self) -> Exception | None:
        """Until the job is done; what it failed of, if it did."""
        self.end.acquire()
        failure, self.failure = self.failure, None
        return failure


class Team:
    """The calling thread and `threads - 1` helpers. One piece of work at a time; used by one thread."""

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"threads = {threads}; at least 1 is needed")
        self.threads = threads
        self._limits = threadpool_limits(limits=1, user_api="blas")
        self._helpers = [_Helper() for _ in range(threads - 1)]
        for helper in self._helpers:
            Thread(target=helper.loop, name="native-matmul", daemon=True).start()

    def run(self, jobs: Sequence[Job]) -> None:
        """All of them, side by side; at most `threads`. The first error of any is raised when all have ended."""
        helpers = self._helpers[: len(jobs) - 1]
        for helper, job in zip(helpers, jobs[1:], strict=True):
            helper.job = job
            helper.begin.release()
        try:
            jobs[0]()
        finally:  # all must have ended before the next work begins
            failures = [failure for helper in helpers if (failure := helper.wait())]
        if failures:
            raise failures[0]

    def linear(self, x: Array, weight: Array) -> Array:
        """x (tokens, inputs) times weight (outputs, inputs) transposed -> (tokens, outputs).

        The weight stands on the left, since BLAS then reads its rows as they lie: for few tokens a third faster.
        """
        columns = x.T
        shares = min(self.threads, max(weight.size * len(x) // MIN_SHARE, 1))
        if shares == 1:
            return np.asarray((weight @ columns).T)
        out = np.empty((len(weight), columns.shape[1]), dtype=np.float32)
        edges = [len(weight) * i // shares for i in range(shares + 1)]
        self.run(
            [partial(np.matmul, weight[first:last], columns, out=out[first:last]) for first, last in pairwise(edges)]
        )
        return np.asarray(out.T)
