"""The executor on a wall clock: numpy does the arithmetic, on a number of threads that is set on purpose."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from pathlib import Path

from native_core.executor import Sampled, StepResult, Work
from native_core.llama import Llama
from native_core.parallel import Team
from native_core.sampler import sample


class NumpyExecutor:
    """Satisfies native_core.executor.Executor. Raises ModelError for a directory without a supported model."""

    def __init__(self, model_dir: Path, *, threads: int) -> None:
        self._model = Llama(model_dir, Team(threads))

    def allocate(self, num_blocks: int, block_size: int) -> None:
        self._model.allocate(num_blocks, block_size)

    def execute(self, work: Sequence[Work]) -> StepResult:
        began = time.perf_counter()
        wanted = [i for i, item in enumerate(work) if item.sampling is not None]
        logits, parts = self._model.forward(work, wanted)
        drawn = time.perf_counter()
        sampled: list[Sampled | None] = [None] * len(work)
        for row, i in enumerate(wanted):
            item = work[i]
            assert item.sampling is not None
            stream = zlib.crc32(item.request_id.encode())
            sampled[i] = sample(logits[row], item.sampling, stream=stream, step=item.step_index, banned=item.banned)
        ended = time.perf_counter()
        seconds = {"attention": parts.attention, "mlp": parts.mlp, "logits": parts.logits, "sample": ended - drawn}
        return StepResult(sampled, ended - began, seconds)

    def now(self) -> float:
        return time.monotonic()
