from __future__ import annotations

import pytest

from native_core.executor import SamplingParams, Work
from native_core.virtual import StepTime, UnfilledBlockError, VirtualExecutor

GREEDY = SamplingParams()


def executor(**options: int) -> VirtualExecutor:
    virtual = VirtualExecutor(StepTime(1.0, 0.1, 0.01, 0.001), **options)
    virtual.allocate(num_blocks=6, block_size=2)
    return virtual


def token(virtual: VirtualExecutor, work: Work) -> int:
    sampled = virtual.execute([work]).sampled[0]
    assert sampled is not None
    return sampled.token_id


def test_a_step_takes_what_the_model_says_and_moves_the_clock_by_it() -> None:
    virtual = executor()
    chunk = Work("a", [1, 2, 3], 0, [1, 2], None)
    assert virtual.execute([chunk]).seconds == pytest.approx(1.0 + 0.1 + 0.01 * 3 + 0.001 * 3)
    decode = Work("a", [4], 3, [1, 2], GREEDY)
    assert virtual.execute([decode, Work("b", [9], 0, [3], GREEDY)]).seconds == pytest.approx(1.0 + 0.2 + 0.01 * 5)
    assert virtual.now() == pytest.approx(1.133 + 1.25)
    virtual.wait_until(10.0)
    virtual.wait_until(5.0)
    assert virtual.now() == 10.0


def test_the_token_depends_on_every_token_before_it_wherever_the_blocks_lie() -> None:
    virtual = executor()
    first = token(virtual, Work("a", [1, 2, 3], 0, [1, 2], GREEDY))
    assert token(virtual, Work("b", [1, 2, 3], 0, [4, 3], GREEDY)) == first
    virtual.execute([Work("c", [1, 2], 0, [5], None)])
    assert token(virtual, Work("c", [3], 2, [5, 1], GREEDY)) == first
    others = {token(virtual, Work("d", prompt, 0, [1, 2], GREEDY)) for prompt in ([0, 2, 3], [1, 0, 3], [2, 1, 3])}
    assert len(others | {first}) == 4


def test_what_nobody_filled_cannot_be_read() -> None:
    virtual = executor()
    virtual.execute([Work("a", [1, 2], 0, [1], None)])
    with pytest.raises(UnfilledBlockError, match="position 1"):
        virtual.execute([Work("b", [3], 2, [2, 3], GREEDY)])


def test_an_item_can_share_what_an_earlier_one_of_the_same_batch_fills() -> None:
    virtual = executor()
    batch = [Work("a", [1, 2, 3], 0, [1, 2], GREEDY), Work("b", [3], 2, [1, 3], GREEDY)]
    first, second = virtual.execute(batch).sampled
    assert first == second


def test_seeds_steps_and_bans_change_what_is_drawn() -> None:
    def draw(sampling: SamplingParams, step: int = 0, banned: frozenset[int] = frozenset(), seed: int = 0) -> int:
        return token(executor(seed=seed), Work("a", [1, 2, 3], 0, [1, 2], sampling, step, banned))

    greedy = draw(GREEDY)
    assert draw(SamplingParams(seed=5), step=3) == greedy  # greedy: neither seed nor step matter
    assert draw(GREEDY, banned=frozenset([greedy])) != greedy
    assert draw(GREEDY, seed=1) != greedy
    warm = [draw(SamplingParams(temperature=1.0, seed=seed), step) for seed in (1, 1, 2) for step in (0, 1)]
    assert warm[:2] == warm[2:4]
    assert len(set(warm[2:])) == 4
