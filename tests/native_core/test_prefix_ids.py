from __future__ import annotations

from array import array
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from native_core.prefix_ids import PrefixIds

SIZE = 2
SEQUENCE = st.lists(st.integers(0, 1), max_size=9)
SALT = st.sampled_from([None, "a", "b"])


def chain_of(table: PrefixIds, tokens: list[int], salt: str | None = None) -> list[int]:
    chain: list[int] = []
    table.extend(chain, array("i", tokens), salt)
    return chain


@given(st.lists(st.tuples(SEQUENCE, SALT), max_size=8))
def test_ids_are_equal_exactly_where_all_tokens_and_the_salt_are(sequences: list[tuple[list[int], str | None]]) -> None:
    table = PrefixIds(SIZE)
    meaning: dict[int, tuple[tuple[int, ...], str | None]] = {}
    for tokens, salt in sequences:
        chain = chain_of(table, tokens, salt)
        assert len(chain) == len(tokens) // SIZE
        for at, prefix_id in enumerate(chain, 1):
            content = (tuple(tokens[: at * SIZE]), salt)
            assert meaning.setdefault(prefix_id, content) == content
    assert len(set(meaning.values())) == len(meaning)


@given(st.lists(st.tuples(SEQUENCE, SALT, SEQUENCE), max_size=8), st.randoms(use_true_random=False))
def test_growing_in_two_goes_is_the_same_and_nothing_is_left_when_all_let_go(
    sequences: list[tuple[list[int], str | None, list[int]]], order: object
) -> None:
    table = PrefixIds(SIZE)
    chains = []
    for begin, salt, rest in sequences:
        tokens = array("i", begin)
        chain: list[int] = []
        table.extend(chain, tokens, salt)
        tokens.extend(rest)
        table.extend(chain, tokens, salt)
        whole = chain_of(table, begin + rest, salt)
        assert whole == chain
        chains += [chain, whole]
        table.check(Counter(chain[-1] for chain in chains if chain))
    order.shuffle(chains)  # type: ignore[attr-defined]
    while chains:
        table.release(chains.pop())
        table.check(Counter(chain[-1] for chain in chains if chain))
    assert len(table) == 0


def test_a_parent_outlives_its_child_so_that_recomputing_it_leads_to_the_child_again() -> None:
    table = PrefixIds(SIZE)
    chain = chain_of(table, [1, 2, 3, 4])
    parent, child = chain
    table.hold(child)  # a cached block of the child alone
    table.release(chain)
    assert chain_of(table, [1, 2, 3, 4]) == [parent, child]


def test_a_salt_is_not_a_token() -> None:
    table = PrefixIds(SIZE)
    assert chain_of(table, [1, 2], None) != chain_of(table, [1, 2], "")
    assert chain_of(table, [1, 2], "x") == chain_of(table, [1, 2], "x")
