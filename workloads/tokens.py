"""Token ids for prompts: random bodies, and first tokens that no two prompts share."""

from __future__ import annotations

from workloads.model import WorkloadError
from workloads.rng import Stream
from workloads.vocabulary import Vocabulary


class TokenSource:
    """Draws ids of one workload. A cache key is a chain from token 0, so a distinct token ends all sharing there."""

    def __init__(self, vocabulary: Vocabulary, seed: int, family: str) -> None:
        self._ids = vocabulary.ids
        self._seed = seed
        self._family = family

    def body(self, label: str, n: int) -> tuple[int, ...]:
        """n ids, independent and uniform over the vocabulary, a stream for each label."""
        ids = self._ids
        return tuple(ids[i] for i in Stream.of(self._seed, self._family, "body", label).integers(len(ids), n))

    def distinct(self, label: str, n: int, *, without: frozenset[int] = frozenset()) -> list[int]:
        """n different ids, none of `without`. Raises WorkloadError if the vocabulary has not that many."""
        ids = self._ids
        wanted = n + len(without)
        if wanted > len(ids):
            raise WorkloadError(
                f"{n} prompts need {wanted} different tokens at {label}, the vocabulary offers {len(ids)}; "
                "ask for fewer requests or take a model with a larger vocabulary"
            )
        picked = Stream.of(self._seed, self._family, "distinct", label).sample(len(ids), wanted)
        return [ids[i] for i in picked if ids[i] not in without][:n]
