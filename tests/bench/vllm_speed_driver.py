"""vLLM's offline engine, timed: `python vllm_speed_driver.py MODEL`, run with the interpreter of a vLLM environment.

Reads lines {"prompts": [[ids]], "tokens": n}, answers each with `measured [seconds to the last first token, seconds
from there to the end]`; the first such line, before any is read, says that it is ready. Eager, bfloat16.
"""

from __future__ import annotations

import json
import os
import sys
import time


def main() -> None:
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    from vllm import LLM, SamplingParams

    llm = LLM(sys.argv[1], dtype="bfloat16", max_model_len=4096, enforce_eager=True, enable_prefix_caching=False)
    engine, served = llm.llm_engine, 0
    print("measured [0, 0]", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        params = SamplingParams(temperature=0.0, max_tokens=job["tokens"], ignore_eos=True)
        for prompt in job["prompts"]:
            engine.add_request(str(served), {"prompt_token_ids": prompt}, params)
            served += 1
        first: set[str] = set()
        began = middle = time.perf_counter()
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.request_id not in first and output.outputs[0].token_ids:
                    first.add(output.request_id)
                    middle = time.perf_counter()
        print(f"measured {json.dumps([middle - began, time.perf_counter() - middle])}", flush=True)


if __name__ == "__main__":
    main()
