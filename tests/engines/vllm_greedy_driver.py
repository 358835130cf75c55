"""Greedy answers of vLLM to texts, in float32, as JSON.

Run with the interpreter of a vLLM environment: `python vllm_greedy_driver.py < job.json > answers.json`. Imports
nothing of this repository. The job: {"model": directory, "texts": [...], "tokens": per answer}.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    job = json.load(sys.stdin)
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine inside this process: one to start, one to end
    }
    from vllm import LLM, SamplingParams, __version__

    llm = LLM(job["model"], dtype="float32", max_model_len=2048, enforce_eager=True, seed=0)
    greedy = SamplingParams(temperature=0.0, max_tokens=job["tokens"], ignore_eos=True)
    answers = llm.generate(job["texts"], greedy, use_tqdm=False)
    rows = [{"prompt": list(row.prompt_token_ids), "output": list(row.outputs[0].token_ids)} for row in answers]
    print(json.dumps({"version": __version__, "answers": rows}))


if __name__ == "__main__":
    main()
