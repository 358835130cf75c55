"""Plans: strict, with the place in every error; what a run writes down is the whole plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.plan import AUTO, Plan, load_plan, parse_plan, quickstart
from harness.records.errors import UsageError
from tests.workloads.sharing import WORDS
from workloads.file import write_workload
from workloads.lengths import prompt_lengths
from workloads.model import Load
from workloads.registry import generate

ROOT = Path(__file__).parents[2]
PLANS = [None, *sorted((ROOT / "plans").glob("*.toml"))]

BASE = """\
schema = 1
name = "base"
slo = { ttft_s = 2.0 }
[run]
cache = "flushed"
timeout_s = { connect = 5, first_token = 60, between_tokens = 30, total = 300 }
# kv_token = 1 in a comment is no key
[[engine]]
name = "native"
kind = "native"
options = { block_size = 16, kv_tokens = 4096, max_model_len = 1024 }
[[engine]]
name = "other"
kind = "vllm"
env = "vllm-x"
args = ["--enforce-eager"]
[engine.options]
block_size = 32
[[workload]]
name = "hits"
family = "prefix_hit"
load = { mode = "closed", in_flight = 4 }
params = { full = 2, groups = 1 }
[[workload]]
name = "turns"
family = "multi_turn"
"""


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem if path else "quickstart")
def test_plans_that_ship_are_whole_and_their_workloads_fit(path: Path | None) -> None:
    plan = load_plan(path)
    assert parse_plan(plan.to_toml(), "again") == plan
    for part in plan.workloads:
        workload = part.build(plan.seed, WORDS)
        for engine in plan.engines:
            plan.check_fits(workload, engine)


def cost(plan: Plan, name: str, block: int) -> tuple[int, int, int]:
    """(requests, computed prompt tokens with a cache of `block`, output tokens)."""
    (part,) = [part for part in plan.workloads if part.name == name]
    workload = part.build(plan.seed, WORDS)
    rows = list(zip(workload.requests, prompt_lengths(workload), strict=True))
    computed = sum(length - min(row.shared_tokens, length - 1) // block * block for row, length in rows)
    return len(rows), computed, sum(row.max_tokens for row, _ in rows)


def test_the_quickstart_stays_within_the_budget_of_its_comment() -> None:
    """Two minutes on two slow cores: 250 prompt tokens a second, 50 output tokens a second."""
    plan = quickstart()
    costs = {part.name: cost(plan, part.name, 16) for part in plan.workloads}
    assert costs == {"prefix-hit": (26, 2208, 624), "long-prompt": (24, 2208, 528), "multi-turn": (12, 672, 288)}
    seconds = sum(computed / 250 + output / 50 + plan.run.warmup_s for _, computed, output in costs.values())
    assert seconds < 60


def test_the_first_token_case_looks_up_8640_tokens_and_its_twin_hits_6624() -> None:
    plan = load_plan(ROOT / "plans" / "first-token-differs.toml")
    assert cost(plan, "first-token-differs", 32)[:2] == (24, 8640)
    assert cost(plan, "suffix-differs", 32)[:2] == (24, 8640 - 6624)
    assert plan.run.warmup_s == 0
    assert all(part.load == {"mode": "closed", "in_flight": 8} for part in plan.workloads)


def test_defaults_are_written_out() -> None:
    text = parse_plan(BASE, "base").to_toml()
    for line in ["seed = 7", "repeats = 1", 'launch = "per-plan"', "warmup_s = 3.0", 'model = "smollm2-135m"']:
        assert line in text.splitlines()
    assert 'load = { mode = "sessions", in_flight = 4 }' in text
    assert "partial_share = 0.5" in text
    assert 'answers = "scripted"' in text


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("block_size = 16", "blok_size = 16", "p:11: unknown key 'blok_size' in [[engine]] 1 options; did you mean"),
        ("block_size = 32", "kv_token = 32", "p:18: unknown key 'kv_token' in [[engine]] 2 options; did you mean"),
        ('cache = "flushed"', 'cach = "flushed"', "p:5: unknown key 'cach' in [run]; did you mean 'cache'?"),
        ("first_token = 60", "first = 60", "p:6: unknown key 'first' in [run]"),
        ("slo = {", "slow = {", "p:3: unknown key 'slow' in the plan; did you mean 'slo'?"),
        ('family = "multi_turn"', 'famly = "multi_turn"', "p:26: unknown key 'famly' in [[workload]] 2; did you mean"),
        ("groups = 1", "group = 1", "p:23: [[workload]] 1: unknown parameter 'group'; did you mean 'groups'?"),
        ("in_flight = 4", "in_flight = 4, rate = 1", "p:22: [[workload]] 1: a closed load has no 'rate'; 'rate'"),
        ("in_flight = 4", "in_flight = 0", "p:22: [[workload]] 1: in_flight is 0; it must be a number above 0"),
        ("total = 300", "total = 0", "p:6: [run]: total: Input should be greater than 0"),
        ("total = 300", "total = 20", "p:6: [run]: total is below first_token"),
        ("ttft_s = 2.0", "ttft_s = -2.0", "p:3: [slo]: ttft_s: Input should be greater than 0"),
        ('cache = "flushed"', 'cache = "fresh"', 'p:5: [run]: cache = "fresh" is a new process for each cell'),
        ('name = "other"', 'name = "native"', "p: the plan: two engines are called 'native'"),
        ('name = "turns"', 'name = "hits"', "p: the plan: two workloads are called 'hits'"),
        ('name = "turns"', 'name = "../up"', "p:25: [[workload]] 2: name: String should match"),
        ('kind = "vllm"', 'kind = "vlm"', "p:14: [[engine]] 2: kind: Input should be 'native', 'vllm'"),
        ('env = "vllm-x"\n', "", "p:12: [[engine]] 2: give env (a name from `servescope engines list`)"),
        ("kv_tokens = 4096", "kv_tokens = 4090", "kv_tokens = 4090 is no multiple of block_size = 16"),
        ("kv_tokens = 4096", 'kv_tokens = "4096"', "p:11: [[engine]] 1 options: kv_tokens: Input should be a"),
        ('args = ["--enforce-eager"]', 'args = ["--api-key=sesame"]', "use api_key_env"),
        ('family = "multi_turn"', 'family = "multi_turn"\nfile = "x"', "give either family or file"),
        ("schema = 1", "schema = 2", "p: plan schema 2, this servescope reads 1"),
        ("schema = 1", "schema = ", "p: Invalid value (at line 1"),
    ],
)  # fmt: skip
def test_a_plan_that_is_none_is_one_line_with_its_place(old: str, new: str, says: str) -> None:
    assert old in BASE
    parse_plan(BASE, "p")
    with pytest.raises(UsageError) as error:
        parse_plan(BASE.replace(old, new, 1), "p")
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert "sesame" not in str(error.value)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ('url = "http://me:sesame@h"', "a URL with a password"),
        ('url = "ftp://h"', "a URL looks like"),
        ('url = "http://h:port"', "no URL"),
        ('url = "http://h/?key=sesame"', "without ? and #"),
        ('url = "http://h"\nenv = "x"', "runs already"),
        ('url = "http://h"\nkind = "vllm"\noptions = { threads = 2 }', "runs already"),
        ('url = "http://h"\napi_key_env = "sk-sesame"', "api_key_env: String should match"),
        ('kind = "openai"', "give its url"),
        ('kind = "native"\nenv = "x"', "leave env out"),
        ('kind = "vllm"\nenv = "x"\noptions = { profile = "y" }', "native core only"),
        ('kind = "vllm"\nenv = "x"\napi_key_env = "KEY"', "for an engine behind a url"),
    ],
)
def test_an_engine_is_reached_in_exactly_one_way(lines: str, says: str) -> None:
    text = BASE + f'[[engine]]\nname = "third"\n{lines}\n'
    with pytest.raises(UsageError) as error:
        parse_plan(text, "p")
    assert says in str(error.value)
    assert "sesame" not in str(error.value)


def test_a_server_behind_a_url_needs_no_kind() -> None:
    plan = parse_plan(BASE + '[[engine]]\nname = "third"\nurl = "https://h:8000/base/v1/"\napi_key_env = "KEY"\n', "p")
    engine = plan.engines[-1]
    assert (engine.kind, engine.url) == (AUTO, "https://h:8000/base")
    config = engine.config("light", kind="sglang")
    assert (config.kind, config.url, config.api_key_env, config.evidence) == (
        "sglang",
        "https://h:8000/base",
        "KEY",
        "light",
    )


def test_a_server_that_runs_already_cannot_have_a_fresh_cache() -> None:
    text = BASE.replace('"flushed"', '"fresh"\nlaunch = "per-cell"')
    parse_plan(text, "p")
    with pytest.raises(UsageError, match="runs already"):
        parse_plan(text + '[[engine]]\nname = "third"\nurl = "http://h"\n', "p")


def test_config_holds_only_what_is_set() -> None:
    config = parse_plan(BASE, "p").engines[1].config("full", python="/env/bin/python")
    assert dict(config.options) == {"block_size": 32}
    assert (config.name, config.env, config.python, config.args) == (
        "other",
        "vllm-x",
        "/env/bin/python",
        ("--enforce-eager",),
    )


def test_engines_by_name_kind_environment_and_url() -> None:
    plan = parse_plan(BASE, "p")
    installed = {"vllm-x": "vllm", "sglang-9-cpu": "sglang", "mine": "vllm"}

    def chosen(*words: str) -> list[dict[str, Any]]:
        changed = plan.with_overrides(engines=words, environments=installed, api_key_env="KEY")
        return [engine.model_dump(exclude_none=True) for engine in changed.engines]

    assert [e["name"] for e in chosen()] == ["native", "other"]
    assert [e["name"] for e in chosen("other")] == ["other"]
    assert [e["name"] for e in chosen("vllm", "native", "other")] == ["other", "native"]
    (sglang,) = chosen("sglang")
    assert (sglang["name"], sglang["env"]) == ("sglang-9-cpu", "sglang-9-cpu")
    assert sglang["options"] == {"kv_tokens": 4096, "max_model_len": 1024}
    assert sglang["args"] == ("--disable-overlap-schedule",)
    (mine,) = chosen("mine")
    assert (mine["kind"], mine["args"]) == ("vllm", ())
    (server,) = chosen("http://127.0.0.1:8000/v1")
    assert (server["name"], server["kind"], server["url"]) == ("127.0.0.1-8000", AUTO, "http://127.0.0.1:8000")
    assert server["api_key_env"] == "KEY"


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("nativ", "did you mean 'native'?"),
        ("sglang", "no environment has it; `servescope engines install sglang --device cpu`"),
        ("http://u:sesame@h", "--engine URL: a URL with a password"),
        ("http://", "--engine URL: a URL looks like"),
    ],
)
def test_an_engine_that_is_none_is_one_line(word: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_plan(BASE, "p").with_overrides(engines=[word])
    assert says in str(error.value)
    assert "sesame" not in str(error.value)


def test_a_kind_with_two_environments_must_be_named() -> None:
    plan = quickstart()
    with pytest.raises(UsageError, match="name one of a, b"):
        plan.with_overrides(engines=["vllm"], environments={"b": "vllm", "a": "vllm"})


def test_workloads_by_name_and_file(tmp_path: Path) -> None:
    plan = parse_plan(BASE, "p")
    assert [w.name for w in plan.with_overrides(workloads=["turns", "hits"]).workloads] == ["turns", "hits"]
    path = tmp_path / "mine of today.jsonl.gz"
    made = generate("long_prompt", name="x", seed=1, params={}, load=None, vocabulary=WORDS)
    write_workload(made, path)
    changed = plan.with_overrides(workloads=[str(path)])
    assert [w.name for w in changed.workloads] == ["mine-of-today"]
    assert changed.workloads[0].build(7, WORDS) == made
    assert parse_plan(changed.to_toml(), "p") == changed
    with pytest.raises(UsageError, match="did you mean 'hits'"):
        plan.with_overrides(workloads=["hit"])


def test_a_workload_file_is_found_beside_its_plan(tmp_path: Path) -> None:
    made = generate("long_prompt", name="x", seed=1, params={}, load=None, vocabulary=WORDS)
    write_workload(made, tmp_path / "w.jsonl.gz")
    (tmp_path / "plan.toml").write_text(BASE + '[[workload]]\nname = "file"\nfile = "w.jsonl.gz"\n')
    assert load_plan(tmp_path / "plan.toml").workloads[-1].build(7, WORDS) == made
    (tmp_path / "w.jsonl.gz").write_bytes(b"x")
    with pytest.raises(UsageError, match="no workload file"):
        load_plan(tmp_path / "plan.toml").workloads[-1].build(7, WORDS)


def test_model_and_repeats_beat_the_plan() -> None:
    changed = quickstart().with_overrides(model="tiny", repeats=3)
    assert (changed.model, changed.run.repeats) == ("tiny", 3)
    with pytest.raises(UsageError, match="repeats"):
        quickstart().with_overrides(repeats=0)


def test_seeds_of_a_plan_and_of_a_workload() -> None:
    plan = parse_plan(BASE + "seed = 99\n", "p")  # of the last workload
    built = [part.build(plan.seed, WORDS) for part in plan.workloads]
    assert [workload.seed for workload in built] == [7, 99]
    assert built[0].load == Load("closed", {"in_flight": 4})


def test_a_context_that_is_too_small_is_found_before_the_run() -> None:
    plan = parse_plan(BASE.replace("max_model_len = 1024", "max_model_len = 300"), "p")
    workload = plan.workloads[0].build(7, WORDS)  # 288 + 24
    with pytest.raises(UsageError, match="needs 312 tokens of context, engine 'native' has 300"):
        plan.check_fits(workload, plan.engines[0])
    plan.check_fits(workload, plan.engines[1])
    with pytest.raises(UsageError, match="has 311"):
        plan.check_fits(workload, plan.engines[1], max_model_len=311)


def test_salt_only_where_the_engine_takes_one() -> None:
    plan = parse_plan(BASE.replace('"flushed"', '"salted"'), "p")
    plan.check_salt(plan.engines[1], can_salt=True)
    with pytest.raises(UsageError, match="takes no cache salt"):
        plan.check_salt(plan.engines[0], can_salt=False)


def test_a_plan_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            load_plan(path)
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="no UTF-8"):
        load_plan(tmp_path / "bad.toml")


def test_timeouts_and_limits_for_the_client_and_the_report() -> None:
    plan = parse_plan(BASE, "p")
    assert json.loads(plan.timeouts().model_dump_json()) == {
        "connect": 5.0,
        "first_token": 60.0,
        "between_tokens": 30.0,
        "total": 300.0,
    }
    assert plan.slo_limits() == {"ttft_s": 2.0}
