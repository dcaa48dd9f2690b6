"""Facts of a model from its config alone, and the budget that follows from them."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from baton.spec.budget import budget_of, lines_of
from baton.spec.hub import Unreachable, fetch_facts
from baton.spec.machine import GIB, Machine
from baton.spec.model_facts import ModelFacts, facts_from_config, find_model, read_facts
from baton.spec.view import AppView
from tests.unit.spec.files import BASE, GPU_BOX, LAPTOP
from tests.unit.spec.mutations import LAPTOP_FILE, load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "hidden_size": 4096, "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "hidden_size": 7168, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "max_position_embeddings": 163840, "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA = {
    "model_type": "gemma3_text", "num_hidden_layers": 18, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 256, "hidden_size": 640, "sliding_window": 512,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
    "max_position_embeddings": 32768, "dtype": "bfloat16",
}  # fmt: skip
QWEN_NEXT = {
    "model_type": "qwen3_next", "num_hidden_layers": 48, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "hidden_size": 2048, "full_attention_interval": 4,
    "linear_num_value_heads": 32, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "dtype": "bfloat16",
    "max_position_embeddings": 262144,
}  # fmt: skip


def facts(config: dict[str, Any], **more: Any) -> ModelFacts:
    return facts_from_config({**config, **more}, "x", 0)


def test_gqa_keeps_two_vectors_a_kv_head_a_layer() -> None:
    """2 x 8 heads x 128 x 2 bytes x 32 layers."""
    llama = facts(LLAMA)
    assert llama.kv_bytes_per_token() == 2 * 8 * 128 * 2 * 32 == 131_072
    assert llama.kv_bytes_per_token("fp8") == 65_536
    assert llama.kv_bytes(4096) == 4096 * 131_072


def test_mla_keeps_one_compressed_vector_a_layer() -> None:
    """(512 + 64) x 2 bytes x 61 layers, whatever the number of heads."""
    deepseek = facts(DEEPSEEK)
    assert deepseek.is_mla
    assert deepseek.kv_bytes_per_token() == 576 * 2 * 61


def test_a_compressed_rank_alone_is_not_mla() -> None:
    """vLLM runs MiniCPM3 with ordinary attention."""
    assert not facts(DEEPSEEK, model_type="minicpm3").is_mla


def test_sliding_layers_keep_their_window_only() -> None:
    """Fifteen of Gemma's eighteen layers see 512 tokens."""
    gemma = facts(GEMMA)
    layer = 2 * 1 * 256 * 2
    assert (gemma.sliding_layers, gemma.full_layers, gemma.is_hybrid) == (15, 3, True)
    assert gemma.kv_bytes(4096) == 3 * 4096 * layer + 15 * 512 * layer
    assert gemma.kv_bytes(100) == 18 * 100 * layer


def test_linear_attention_layers_keep_a_state_of_fixed_size() -> None:
    """Every fourth layer of Qwen3-Next keeps KV."""
    qwen = facts(QWEN_NEXT)
    assert (qwen.mamba_layers, qwen.full_layers, qwen.has_mamba) == (36, 12, True)
    assert qwen.state_bytes_per_layer == 2 * ((2 * 16 * 128 + 32 * 128) * 3 + 32 * 128 * 128)
    growth = qwen.kv_bytes(2000) - qwen.kv_bytes(1000)
    assert growth == 1000 * 12 * 2 * 2 * 256 * 2


@pytest.mark.parametrize(
    ("more", "longest"),
    [
        ({}, 8192),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, 32768),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 8192),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0,
                              "original_max_position_embeddings": 4096}}, 16384,
        ),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}}, 16384),
        ({"model_max_length": 2048}, 2048),
        ({"max_position_embeddings": None}, None),
    ],
)  # fmt: skip
def test_the_longest_context_is_derived_as_vllm_derives_it(
    more: dict[str, Any], longest: int | None
) -> None:
    """With RoPE scaling, which multiplies for some kinds only."""
    assert facts(LLAMA, **more).max_position_embeddings == longest


def test_the_text_part_of_a_multimodal_config_is_read() -> None:
    """The language model is the one with the KV."""
    config = {"model_type": "qwen2_5_vl", "text_config": LLAMA}
    assert facts_from_config(config, "x").kv_heads == 8


def test_a_folder_is_read_with_the_size_of_its_weights(tmp_path: Path) -> None:
    """From the index when there is one, else from the files."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    found = read_facts(tmp_path)
    assert found is not None
    assert found.weights_bytes == 1000
    index = {"metadata": {"total_size": 5000}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = read_facts(tmp_path)
    assert found is not None
    assert found.weights_bytes == 5000


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"num_hidden_layers": "many"}'])
def test_a_broken_config_is_no_traceback(tmp_path: Path, text: str) -> None:
    """What cannot be read is unknown."""
    (tmp_path / "config.json").write_text(text)
    found = read_facts(tmp_path)
    assert found is None or found.layers == 0


def test_a_model_is_found_in_the_hub_cache(tmp_path: Path) -> None:
    """The snapshot that `refs/main` names."""
    repo = tmp_path / "hub" / "models--org--m"
    for name in ("aaa", "bbb"):
        (repo / "snapshots" / name).mkdir(parents=True)
        (repo / "snapshots" / name / "config.json").write_text("{}")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("bbb\n")
    assert find_model("org/m", {"HF_HOME": str(tmp_path)}) == repo / "snapshots" / "bbb"
    assert find_model("org/other", {"HF_HOME": str(tmp_path)}) is None
    assert find_model("s3://bucket/m", {}) is None


def budget(text: str, model: ModelFacts, machine: Machine, **engine: Any) -> Any:
    args = load(text)["applications"][0]["args"]
    args["decode_config"]["engine_kwargs"].update(engine)
    app = AppView({}, (), args, (), machine)
    return budget_of(app.decode, model, app)


def test_a_gpu_budget_is_the_share_of_its_memory_less_the_weights() -> None:
    """And KV and weights are split over the TP workers."""
    llama = replace(facts(LLAMA), weights_bytes=16 * GIB, max_position_embeddings=131072)
    found = budget(BASE, llama, GPU_BOX, tensor_parallel_size=2, max_num_seqs=16)
    assert found.weights_bytes == 8 * GIB
    assert found.kv_room_bytes == int(80 * GIB * 0.9) - 8 * GIB
    assert found.kv_bytes_per_token == 65_536
    assert found.kv_bytes_of_context == 4096 * 65_536
    assert found.concurrency == 16
    assert found.largest_context == found.kv_room_bytes // 16 // 65_536


def test_heads_beyond_their_number_are_replicated() -> None:
    """TP 16 on 8 KV heads keeps one head on each GPU."""
    llama = facts(LLAMA)
    found = budget(BASE, llama, GPU_BOX, tensor_parallel_size=16)
    assert found.kv_bytes_per_token == llama.kv_bytes_per_token() // 8


def test_mla_is_whole_on_every_worker() -> None:
    """TP does not divide it."""
    found = budget(BASE, facts(DEEPSEEK), GPU_BOX, tensor_parallel_size=8)
    assert found.kv_bytes_per_token == facts(DEEPSEEK).kv_bytes_per_token()


def test_a_cpu_budget_is_the_kv_space() -> None:
    """`VLLM_CPU_KVCACHE_SPACE`, in GiB."""
    found = budget(LAPTOP_FILE, facts(LLAMA), LAPTOP, max_num_seqs=1)
    assert found.room_bytes == found.kv_room_bytes == 1 * GIB
    assert found.largest_context == 8192
    assert found.device == "CPU"


def test_of_two_cpu_kv_sizes_the_variable_wins() -> None:
    """As in vLLM; without it the bytes count."""
    with_bytes = budget(
        LAPTOP_FILE, facts(LLAMA), LAPTOP, max_num_seqs=1, kv_cache_memory_bytes=64 * 2**20
    )
    assert with_bytes.kv_room_bytes == budget(LAPTOP_FILE, facts(LLAMA), LAPTOP).kv_room_bytes
    text = LAPTOP_FILE.replace("VLLM_CPU_KVCACHE_SPACE", "NOTHING")
    assert text != LAPTOP_FILE
    alone = budget(text, facts(LLAMA), LAPTOP, kv_cache_memory_bytes=64 * 2**20)
    assert alone.kv_room_bytes == 64 * 2**20


def test_what_is_unknown_is_said_to_be_unknown() -> None:
    """No GPU here and none named in the file."""
    found = budget(BASE, facts(LLAMA), LAPTOP)
    assert found.room_bytes is None
    assert any("unknown" in line for line in lines_of(found))


class Hub(BaseHTTPRequestHandler):
    """A hub with one open and one closed model."""

    def do_GET(self) -> None:
        open_model = self.path.startswith("/org/m/resolve/main/")
        allowed = self.headers.get("authorization") == "Bearer secret"
        if not open_model and not allowed:
            self.send_error(401)
        elif self.path.endswith("/config.json"):
            self.answer(json.dumps(LLAMA).encode())
        elif open_model and self.path.endswith("index.json"):
            self.answer(json.dumps({"metadata": {"total_size": 7}}).encode())
        else:
            self.send_error(404)

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_the_hub_gives_config_and_size(hub: str) -> None:
    """Two small files, no weights."""
    found = fetch_facts("org/m", env={"HF_ENDPOINT": hub})
    assert (found.kv_heads, found.weights_bytes) == (8, 7)


def test_a_private_model_wants_its_token(hub: str) -> None:
    """`HF_TOKEN`, as everywhere else; without an index the size stays unknown."""
    with pytest.raises(Unreachable, match="401"):
        fetch_facts("org/private", env={"HF_ENDPOINT": hub})
    found = fetch_facts("org/private", env={"HF_ENDPOINT": hub, "HF_TOKEN": "secret"})
    assert (found.kv_heads, found.weights_bytes) == (8, 0)


@pytest.mark.parametrize("name", ["m", "../../etc/passwd", "a/b/c", "http://x/y"])
def test_only_names_of_hub_models_are_asked_for(name: str) -> None:
    """Nothing else becomes part of a URL."""
    with pytest.raises(Unreachable, match="no name"):
        fetch_facts(name, env={"HF_ENDPOINT": "http://127.0.0.1:9"})


def test_a_hub_that_is_not_there_is_said() -> None:
    """No traceback without a network."""
    with pytest.raises(Unreachable, match="could not be asked"):
        fetch_facts("org/m", env={"HF_ENDPOINT": "http://127.0.0.1:9"})
