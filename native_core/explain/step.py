"""Where one step's token budget goes: a small load through the real scheduler, each step as a bar of its budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from native_core.engine_config import EngineConfig
from native_core.executor import Sampled
from native_core.explain.explanation import Explanation
from native_core.explain.svg import COLOURS, EMPTY, Drawing
from native_core.request import Request
from native_core.scheduler import Scheduler

BUDGET, BLOCK = 16, 4
CONFIG = EngineConfig(num_blocks=17, block_size=BLOCK, max_num_seqs=3, max_batched_tokens=BUDGET, max_model_len=64)
STEPS = 7
# Before which step each request arrives; its prompt, and how many tokens it shall answer. D begins as B does.
ARRIVALS: dict[int, list[tuple[str, Sequence[int], int]]] = {
    1: [("A", range(100, 105), 9), ("B", range(200, 206), 9)],
    2: [("C", range(300, 335), 2)],
    3: [("D", [*range(200, 206), *range(400, 404)], 2)],
}


@dataclass(frozen=True)
class Part:
    """What one request got of a step, in tokens."""

    name: str
    kind: str  # decode | prefill
    start: int  # position of its first token
    count: int
    cached: int  # tokens that the cache spared it; they cost no budget
    left: int  # of its prompt, after this step


@dataclass(frozen=True)
class Step:
    number: int
    parts: list[Part]
    unspent: int
    waiting: list[str]
    why_waiting: str


def steps() -> list[Step]:
    scheduler = Scheduler(CONFIG)
    found: list[Step] = []
    waiting: list[str] = []
    for number in range(1, STEPS + 1):
        for name, prompt, answer in ARRIVALS.get(number, []):
            scheduler.add(Request(name, prompt, answer, ignore_eos=True), now=0.0)
            waiting.append(name)
        batch = scheduler.schedule(now=0.0)
        parts = []
        for name, item in batch.items.items():
            request = item.request
            first = name in waiting
            if first:
                waiting.remove(name)
            kind = "decode" if item.decode else "prefill"
            left = max(request.num_prompt_tokens - item.start - item.count, 0)
            parts.append(Part(name, kind, item.start, item.count, item.start if first else 0, left))
        found.append(Step(number, parts, batch.budget, list(waiting), _why(scheduler, waiting, batch.budget)))
        sampled = {name: Sampled(900 + number) for name, item in batch.items.items() if item.emits}
        scheduler.update(batch, sampled, now=0.0)
    return found


def _why(scheduler: Scheduler, waiting: list[str], unspent: int) -> str:
    """The first of the conditions of admission that failed, in the scheduler's order."""
    if not waiting:
        return ""
    if not unspent:
        return "the budget is spent"
    if len(scheduler.running) >= scheduler.config.max_num_seqs:
        return f"{scheduler.config.max_num_seqs} requests run already"
    return "its prompt does not fit into the pool"


def explain() -> Explanation:
    found = steps()
    record = {
        "budget": BUDGET,
        "max_num_seqs": CONFIG.max_num_seqs,
        "profile": CONFIG.profile,
        "steps": [asdict(step) for step in found],
    }
    return Explanation("One token budget a step", _text(found), record, _svg(found))


def _text(found: list[Step]) -> str:
    lines = [
        f"Each step gives out at most {BUDGET} tokens ({CONFIG.profile}): first to the requests that run, in the order",
        "in which they were admitted, then to those that wait. A decode takes one token, a prompt what is left, in",
        "chunks. What the cache holds of a prompt costs nothing. There is no prefill phase: long prompts and decodes",
        f"share steps, so a long prompt makes them longer for all. At most {CONFIG.max_num_seqs} requests run at once.",
    ]
    for step in found:
        bar = "".join(part.name * part.count if part.kind == "prefill" else part.name.lower() for part in step.parts)
        lines += ["", f"step {step.number}  |{bar}{'.' * step.unspent}| {BUDGET - step.unspent} of {BUDGET}"]
        for part in step.parts:
            lines.append(f"        {part.name}: {_words(part)}")
        if step.waiting:
            lines.append(f"        waits: {', '.join(step.waiting)} ({step.why_waiting})")
    return "\n".join([*lines, "", "capitals: prompt tokens; small letters: decodes; dots: budget that nobody needed"])


def _words(part: Part) -> str:
    if part.kind == "decode":
        return f"decode, 1 token at position {part.start}"
    spared = f", {part.cached} more from the cache" if part.cached else ""
    rest = (
        f"; {part.left} to go, so it emits nothing" if part.left else "; its prompt is done, it emits its first token"
    )
    return f"prompt, {part.count} tokens from position {part.start}{spared}{rest}"


def _svg(found: list[Step]) -> str:
    drawing = Drawing("One token budget a step")
    names = [name for arrivals in ARRIVALS.values() for name, _, _ in arrivals]
    size, left, y = 24, 70, 20
    for step in found:
        drawing.text(10, y + 16, f"step {step.number}")
        x = left
        for part in step.parts:
            for _ in range(part.count):
                drawing.box(x, y, size, size, COLOURS[names.index(part.name)], f"{part.name}: {_words(part)}")
                drawing.text(x + size / 2, y + 16, part.name if part.kind == "prefill" else "d", anchor="middle")
                x += size
        for _ in range(step.unspent):
            drawing.box(x, y, size, size, EMPTY, "not needed")
            x += size
        if step.waiting:
            drawing.text(x + 10, y + 16, f"waits: {', '.join(step.waiting)} ({step.why_waiting})")
        y += size + 8
    for at, name in enumerate(names):
        drawing.box(left + at * 60, y, 12, 12, COLOURS[at])
        drawing.text(left + at * 60 + 18, y + 11, name)
    drawing.text(left + len(names) * 60, y + 11, "letter: a prompt token; d: a decode")
    return drawing.document()
