"""Three sequences of different lengths in a small pool, step by step: paged by the real block manager, and beside it
the same load under contiguous and power-of-two reservation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from native_core.engine_config import Counters, EngineConfig
from native_core.events import EventLog
from native_core.explain.explanation import Explanation
from native_core.explain.reservations import Reservations, Usage
from native_core.explain.svg import COLOURS, EMPTY, WASTED, Drawing
from native_core.oracle.fragmentation import next_power_of_two
from native_core.request import Request
from native_core.scheduler_blocks import BlockManager

BLOCK, BLOCKS, LONGEST = 4, 12, 20  # tokens a block, blocks in the pool, longest sequence that is allowed
SLOTS = BLOCK * BLOCKS
SEQUENCES = {"A": (6, 5), "B": (13, 3), "C": (3, 4)}  # prompt and answer in tokens; D comes when B has left
LATE = ("D", 17, 1)

Slots = list[tuple[str, bool]]


@dataclass(frozen=True)
class Moment:
    """After one operation: block tables, and the slots of every policy."""

    what: str
    tables: dict[str, list[int]]
    usage: list[Usage]
    slots: list[Slots]


class Paged:
    """The engine's own block manager; block 0 is never used, and is left out of what is shown."""

    def __init__(self) -> None:
        # Caching is off: with it, freed blocks stay findable, which is another story than fragmentation.
        config = EngineConfig(num_blocks=BLOCKS + 1, block_size=BLOCK, max_model_len=LONGEST, prefix_caching=False)
        self.manager = BlockManager(config, Counters(), EventLog())
        self.live: dict[str, Request] = {}

    def begin(self, name: str, prompt: int, answer: int) -> None:
        request = Request(name, range(prompt), answer)
        if self.manager.admit(request, prompt, [], others_run=bool(self.live)):
            request.computed = prompt
            self.live[name] = request

    def grow(self, name: str, tokens: int) -> None:
        request = self.live[name]
        assert self.manager.grow(request, tokens), "the example is made to fit"
        request.computed += tokens

    def end(self, name: str) -> None:
        self.manager.end(self.live.pop(name))

    def tables(self) -> dict[str, list[int]]:
        return {name: list(request.block_table) for name, request in self.live.items()}

    def usage(self) -> Usage:
        held = sum(request.computed for request in self.live.values())
        pool = self.manager.pool
        # A sequence can take any blocks, so the largest request that fits gets all that are free.
        return Usage("paged", held, pool.used * BLOCK - held, pool.free * BLOCK, pool.free * BLOCK, ())

    def slots(self) -> Slots:
        row: Slots = [("", False)] * SLOTS
        for name, request in self.live.items():
            for at in range(len(request.block_table) * BLOCK):
                block = request.block_table[at // BLOCK]
                row[(block - 1) * BLOCK + at % BLOCK] = (name, at < request.computed)
        return row


def moments() -> list[Moment]:
    """The example, from the first sequence to the last."""
    paged = Paged()
    contiguous = Reservations("contiguous", SLOTS)
    powers = Reservations("power of two", SLOTS)
    found: list[Moment] = []

    def note(what: str) -> None:
        both = [contiguous, powers]
        usage = [paged.usage(), *(policy.usage() for policy in both)]
        found.append(Moment(what, paged.tables(), usage, [paged.slots(), *(policy.owners() for policy in both)]))

    def begin(name: str, prompt: int, answer: int) -> None:
        paged.begin(name, prompt, answer)
        contiguous.begin(name, LONGEST, prompt)
        powers.begin(name, next_power_of_two(prompt + answer), prompt)
        note(f"{name} begins with a prompt of {prompt}")

    def grow(name: str, tokens: int) -> None:
        for policy in (paged, contiguous, powers):
            policy.grow(name, tokens)
        note(f"{name} has answered {tokens} more")

    for name, (prompt, answer) in SEQUENCES.items():
        begin(name, prompt, answer)
    grow("A", 5)
    grow("C", 4)
    grow("B", 3)
    for policy in (paged, contiguous, powers):
        policy.end("B")
    note("B ends and frees its memory")
    begin(*LATE)
    return found


def explain() -> Explanation:
    steps = moments()
    record: dict[str, Any] = {
        "block_size": BLOCK,
        "blocks": BLOCKS,
        "longest": LONGEST,
        "steps": [
            {
                "what": step.what,
                "tables": step.tables,
                "policies": [
                    {**asdict(usage), "internal_share": usage.internal_share, "external_share": usage.external_share}
                    for usage in step.usage
                ],
            }
            for step in steps
        ],
    }
    return Explanation("Block tables and fragmentation", _text(steps), record, _svg(steps))


def _text(steps: list[Moment]) -> str:
    lines = [
        f"A pool of {BLOCKS} blocks of {BLOCK} tokens, {SLOTS} slots. A letter is a token of that sequence, a dot a",
        "slot that is allocated and empty (internal fragmentation), a blank one is free. External fragmentation is the",
        "share of the free slots that one more sequence could not get in one piece; paged, it needs no one piece.",
        f"Contiguous reserves {LONGEST} slots a sequence, the longest allowed; power of two rounds up prompt + answer.",
    ]
    for number, step in enumerate(steps, start=1):
        lines += ["", f"{number}. {step.what}"]
        for usage, slots in zip(step.usage, step.slots, strict=True):
            refused = f", no room for {', '.join(usage.refused)}" if usage.refused else ""
            lines.append(
                f"   {usage.policy:12} |{_drawn(slots)}| internal {_percent(usage.internal_share)} of "
                f"{usage.held + usage.internal:2}, external {_percent(usage.external_share)} of {usage.free:2}{refused}"
            )
        lines += [f"   table of {name}: {' '.join(map(str, table))}" for name, table in step.tables.items()]
    return "\n".join(lines)


def _drawn(slots: Slots) -> str:
    marks = [(name if filled else ".") if name else " " for name, filled in slots]
    return "|".join("".join(marks[at : at + BLOCK]) for at in range(0, len(marks), BLOCK))


def _percent(share: float) -> str:
    return f"{100 * share:3.0f} %"


def _svg(steps: list[Moment]) -> str:
    drawing = Drawing("Block tables and fragmentation")
    names = [*SEQUENCES, LATE[0]]
    size, left, y = 12, 110, 20.0
    for number, step in enumerate(steps, start=1):
        drawing.text(10, y, f"{number}. {step.what}", size=13)
        for usage, slots in zip(step.usage, step.slots, strict=True):
            y += size + 6
            drawing.text(10, y + 10, usage.policy)
            for at, (name, filled) in enumerate(slots):
                fill = EMPTY if not name else COLOURS[names.index(name)] if filled else WASTED
                what = "free" if not name else f"{name}, {'a token' if filled else 'allocated, empty'}"
                drawing.box(left + at * size + at // BLOCK * 2, y, size, size, fill, f"slot {at}: {what}")
            words = f"internal {_percent(usage.internal_share)}, external {_percent(usage.external_share)}"
            refused = f", no room for {', '.join(usage.refused)}" if usage.refused else ""
            drawing.text(left + SLOTS * size + BLOCKS * 2 + 10, y + 10, words + refused)
        y += size + 24
    for at, name in enumerate(names):
        drawing.box(left + at * 60, y - 8, size, size, COLOURS[at])
        drawing.text(left + at * 60 + 18, y + 2, name)
    drawing.box(left + len(names) * 60, y - 8, size, size, WASTED)
    drawing.text(left + len(names) * 60 + 18, y + 2, "allocated, empty")
    return drawing.document()
