"""Small engines for tests, and what a request must answer whatever runs beside it."""

from __future__ import annotations

from typing import Any

from native_core.engine import Engine, EngineConfig
from native_core.executor import Sampled
from native_core.request import Request
from native_core.scheduler import Batch, Output, Scheduler
from native_core.virtual import VirtualExecutor

VOCABULARY = 40
BLOCK = 4


def config(num_blocks: int = 30, **settings: Any) -> EngineConfig:
    return EngineConfig(**{"num_blocks": num_blocks, "block_size": BLOCK, "max_model_len": 200, **settings})


def engine(num_blocks: int = 30, **settings: Any) -> Engine:
    return Engine(config(num_blocks, **settings), VirtualExecutor(vocab_size=VOCABULARY))


def drain(running: Engine, *, check: bool = True) -> list[Output]:
    outputs: list[Output] = []
    while running.has_work:
        outputs += running.step()
        if check:
            running.scheduler.check()
    return outputs


def alone(request: Request, eos_token_ids: frozenset[int] = frozenset()) -> list[int]:
    """The answer to an equal request that has an engine without a cache to itself."""
    context = 200
    single = Engine(
        EngineConfig(
            num_blocks=context // BLOCK + 2,
            block_size=BLOCK,
            max_model_len=context,
            prefix_caching=False,
            eos_token_ids=eos_token_ids,
        ),
        VirtualExecutor(vocab_size=VOCABULARY),
    )
    copy = Request(
        "alone",
        request.prompt_ids,
        request.max_tokens,
        request.sampling,
        ignore_eos=request.ignore_eos,
        stop_token_ids=request.stop_token_ids,
        min_tokens=request.min_tokens,
    )
    single.add(copy)
    while single.has_work:
        single.step()
    return copy.output_ids


class Steps:
    """A scheduler driven by hand: every request's next token is `position`, unless told otherwise."""

    def __init__(self, num_blocks: int = 30, **settings: Any) -> None:
        self.scheduler = Scheduler(config(num_blocks, **settings))

    def add(self, name: str, prompt: list[int], max_tokens: int = 20, **options: Any) -> Request:
        request = Request(name, prompt, max_tokens, **options)
        self.scheduler.add(request, now=0.0)
        return request

    def schedule(self) -> Batch:
        return self.scheduler.schedule(now=0.0)

    def update(self, batch: Batch, token: int | None = None) -> list[Output]:
        sampled = {
            name: Sampled(len(item.request.tokens) if token is None else token) for name, item in batch.items.items()
        }
        outputs = self.scheduler.update(batch, sampled, now=0.0)
        self.scheduler.check()
        return outputs

    def step(self, token: int | None = None) -> dict[str, int]:
        """One step; tokens computed per request."""
        batch = self.schedule()
        self.update(batch, token)
        return {name: item.count for name, item in batch.items.items()}

    def until_done(self, request: Request) -> None:
        while request.finish_reason is None:
            self.step()

    @property
    def queue(self) -> list[int]:
        return self.scheduler.blocks.pool.queue()
