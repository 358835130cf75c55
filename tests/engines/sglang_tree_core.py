"""SGLang's radix tree core (Rust), driven directly: torch is enough, sglang itself is not imported.

For the interpreter of an SGLang environment; imports nothing of this repository. Seen with SGLang 0.5.23.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
from array import array
from pathlib import Path
from typing import Any

import torch

torch.set_num_threads(1)
FULL = 0  # the component "full attention"


def library() -> Path:
    """The extension module of the installed sglang, found without importing sglang."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None, "this interpreter has no sglang"
    assert spec.submodule_search_locations
    (folder,) = spec.submodule_search_locations
    (found,) = Path(folder, "srt/mem_cache/rust_tree_core").glob("mem_cache*.so")
    return found


def _load() -> Any:
    loader = importlib.machinery.ExtensionFileLoader("mem_cache", str(library()))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("mem_cache", loader))
    loader.exec_module(module)
    return module


RUST = _load()
Space = tuple[str | None, str | None]


class Tree:
    """Keys are array('q'), slots int64 tensors."""

    def __init__(self, page_size: int, policy: str) -> None:
        params = RUST.TreeCoreInitParamsBinding(eviction_policy=policy, page_size=page_size, device="cpu")
        self.core = RUST.RustUnifiedTreeCoreBinding(params, [FULL])

    def match(self, key: array[int], space: Space = (None, None)) -> tuple[int, int]:
        """Tokens matched and the node they end with."""
        found = self.core.match_prefix(RUST.MatchParamsBinding(key=key, extra_key=space[0], cache_salt=space[1]))
        return found.device_prefix_len, found.last_device_node_id

    def slots(self, node: int, space: Space = (None, None)) -> torch.Tensor:
        return self.core.collect_full_device_indices(node, self.core.root_node_handle(space[0]))

    def insert(
        self,
        key: array[int],
        slots: torch.Tensor,
        owned: int = 0,
        counted: int = 0,
        priority: int = 0,
        space: Space = (None, None),
    ) -> tuple[int, int, list[torch.Tensor]]:
        """Tokens that were there, the last node, and the duplicates to free."""
        params = RUST.InsertParamsBinding(
            key=key,
            value=slots,
            prev_prefix_len=owned,
            inserted_len=counted,
            priority=priority,
            extra_key=space[0],
            cache_salt=space[1],
        )
        step, duplicates = self.core.begin_insert(params), []
        while True:
            for action in step.actions:
                assert action[0] == "free_device_kv", f"an action that is not known: {action[0]}"
                duplicates.extend(action[1])
            if step.result is not None:
                return step.result.prefix_len, step.result.last_device_node, duplicates
            step = self.core.resume_insert()

    def lock(self, node: int) -> Any:
        return self.core.inc_lock_ref(node, [])

    def unlock(self, node: int, receipt: Any) -> None:
        params = RUST.DecLockRefParamsBinding(
            node_id=receipt.node_id,
            skipped_lock_components=list(receipt.skipped_lock_components),
            component_lock_uuids=dict(receipt.component_lock_uuids),
            component_host_lock_uuids=dict(receipt.component_host_lock_uuids),
        )
        self.core.dec_lock_ref(node, params, False)

    def evict(self, tokens: int) -> tuple[int, list[torch.Tensor]]:
        """Tokens freed, and the slots in the order in which they were."""
        freed, slots = {FULL: 0}, []

        def take(result: Any) -> None:
            for component, count in result.tracker.items():
                freed[component] += count
            slots.extend(result.new_device_frees.get(FULL, ()))

        self.core.evict_device_start(FULL, tokens)
        while True:
            candidate = self.core.evict_device_next_node(FULL, freed)
            take(candidate)
            if candidate.node_id is not None:
                take(self.core.evict_device_leaf(candidate.node_id))
            elif not candidate.made_progress:
                break
        self.core.evict_device_end(FULL)
        return freed[FULL], slots
