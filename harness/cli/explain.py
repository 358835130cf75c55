"""`explain`: how an engine's parts work, shown on small examples that its own code computes."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

from harness.records.errors import InfrastructureError, UsageError

# Topic → the module whose explain() makes it. A further topic is a further module and a further line.
TOPICS = {
    "block-table": "native_core.explain.block_table",
    "step": "native_core.explain.step",
    "metrics": "native_core.explain.metrics",
}


def explain_command(topic: str, *, svg: Path | None, as_json: bool) -> int:
    """Print the explanation, and draw it into a file if one is named."""
    if topic not in TOPICS:
        raise UsageError(f"there is no explanation of {topic!r}", mend=f"choose from {', '.join(TOPICS)}")
    explanation = importlib.import_module(TOPICS[topic]).explain()
    if svg is not None:
        try:
            svg.write_text(explanation.svg, encoding="utf-8")
        except FileNotFoundError:
            raise UsageError(f"{svg.parent} does not exist", mend="make the folder, or name another file") from None
        except OSError as error:
            raise InfrastructureError(f"cannot write {svg}: {error.strerror}", mend="name another file") from None
    if as_json:
        print(json.dumps({"topic": topic, "title": explanation.title, **explanation.record}, indent=2))
    else:
        print(explanation.text)
        if svg is not None:
            print(f"\ndrawn in {svg}")
    return 0
