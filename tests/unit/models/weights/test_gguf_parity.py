"""GGUF files of random models give the logits of the models of transformers that they were written from.

They are written here as convert_hf_to_gguf.py of llama.cpp writes them: the rows of queries and keys of `llama` in
interleaved pairs, those of the others as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turret.models import MiniConfig, load_pretrained
from turret.models.weights.gguf_file import GgufFile
from turret.models.weights.gguf_layout import KNOWN, read_metadata
from turret.nn import RopeScaling
from turret.spi import CheckpointError, ConfigError, Host, NonFiniteError, TurretError, Unsupported
from turret.tensor import no_grad, tensor

BLOCKS, WIDTH, HEADS, KV_HEADS, HIDDEN, VOCABULARY, CONTEXT = 2, 64, 4, 2, 96, 97, 64
IDS = [int(each) for each in np.random.default_rng(1).integers(0, VOCABULARY, 50)]
Change = Callable[[gguf.GGUFWriter, dict[str, Host]], None]

LLAMA = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GPT2 = {
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "lm_head": "output",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def turned(rows: Host, heads: int) -> Host:
    """Half-split pairs to interleaved ones, as llama.cpp does it."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def stored_name(name: str) -> str:
    """What GGUF calls a tensor of transformers."""
    body, _, part = name.rpartition(".")
    if body.startswith(("model.layers.", "transformer.h.")):
        _, _, n, rest = body.split(".", 3)
        return f"blk.{n}.{(LLAMA if 'layers' in body else GPT2)[rest]}.{part}"
    return f"{(LLAMA | GPT2)[body]}.{part}"


def tensors_of(state: dict[str, Host], architecture: str) -> dict[str, Host]:
    made = {}
    for name, array in state.items():
        if architecture == "llama" and "q_proj" in name:
            array = turned(array, HEADS)
        if architecture == "llama" and "k_proj" in name:
            array = turned(array, KV_HEADS)
        if architecture == "gpt2" and array.ndim == 2 and ".h." in name:
            array = array.T
        made[stored_name(name)] = np.ascontiguousarray(array)
    return made


def write(path: Path, tensors: dict[str, Host], architecture: str, change: Change | None = None) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(BLOCKS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(4 * WIDTH if architecture == "gpt2" else HIDDEN)
    writer.add_head_count(HEADS)
    if architecture == "gpt2":
        writer.add_layer_norm_eps(1e-5)
    else:
        writer.add_head_count_kv(KV_HEADS)
        writer.add_layer_norm_rms_eps(1e-6)
    tensors = dict(tensors)
    if change is not None:
        change(writer, tensors)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_state() -> dict[str, Host]:
    """Weights by the names of transformers, for tests that compare with nothing of theirs."""
    random, head_size, state = np.random.default_rng(3), WIDTH // HEADS, {}

    def add(name: str, *shape: int) -> None:
        state[name] = random.normal(size=shape).astype(np.float32) * 0.2

    add("model.embed_tokens.weight", VOCABULARY, WIDTH)
    for n in range(BLOCKS):
        layer = f"model.layers.{n}"
        for name, outputs in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            add(f"{layer}.self_attn.{name}_proj.weight", outputs * head_size, WIDTH)
        add(f"{layer}.self_attn.o_proj.weight", WIDTH, HEADS * head_size)
        add(f"{layer}.mlp.gate_proj.weight", HIDDEN, WIDTH)
        add(f"{layer}.mlp.up_proj.weight", HIDDEN, WIDTH)
        add(f"{layer}.mlp.down_proj.weight", WIDTH, HIDDEN)
        add(f"{layer}.input_layernorm.weight", WIDTH)
        add(f"{layer}.post_attention_layernorm.weight", WIDTH)
    add("model.norm.weight", WIDTH)
    add("lm_head.weight", VOCABULARY, WIDTH)
    return state


def llama_file(path: Path, change: Change | None = None) -> Path:
    return write(path, tensors_of(random_state(), "llama"), "llama", change)


def logits(model: Any, ids: list[int]) -> Host:
    with no_grad():
        return model(tensor(np.array([ids], np.int32), backend=model.parameters()[0].backend)).numpy()[0]


SHARED: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": HIDDEN}
SHARED |= {"num_hidden_layers": BLOCKS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS}
SHARED |= {"max_position_embeddings": CONTEXT, "initializer_range": 0.2, "rms_norm_eps": 1e-6, "eos_token_id": None}
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", SHARED),
    "llama tied": ("Llama", SHARED | {"tie_word_embeddings": True}),
    "llama with biases": ("Llama", SHARED | {"attention_bias": True}),
    "qwen2": ("Qwen2", SHARED),
    "qwen3": ("Qwen3", SHARED | {"head_dim": 32}),
    "gpt2": ("GPT2", {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_head": HEADS, "n_layer": BLOCKS}),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", OURS)
def test_logits_are_those_of_the_model_that_was_written(case: str, tmp_path: Path) -> None:
    import torch
    import transformers

    kind, settings = OURS[case]
    if kind == "GPT2":
        settings = settings | {"n_positions": CONTEXT, "initializer_range": 0.2, "eos_token_id": None}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**settings, bos_token_id=None)
    model = getattr(transformers, "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn_like(parameter)
        wanted = model(torch.tensor([IDS])).logits.numpy()[0]
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight")
    architecture = kind.lower()

    def head_size(writer: gguf.GGUFWriter, tensors: dict[str, Host]) -> None:
        if kind == "Qwen3":
            writer.add_key_length(32)
            writer.add_value_length(32)

    path = write(tmp_path / "model.gguf", tensors_of(state, architecture), architecture, head_size)
    loaded = load_pretrained(path, backend="cpu")
    assert (loaded.form, loaded.architecture, loaded.tokenizer) == ("gguf", architecture, None)
    # float32 rounds in other orders here and there: see test_parity.py.
    np.testing.assert_allclose(logits(loaded.model, IDS), wanted, rtol=5e-5, atol=5e-5)


def test_rows_are_turned_back_for_llama_alone(tmp_path: Path) -> None:
    state = random_state()
    files = {name: write(tmp_path / name, tensors_of(state, name), name) for name in ("llama", "qwen3")}
    query = "blocks.1.attention.query.weight"
    with pytest.raises(CheckpointError, match="attn_q_norm"):
        load_pretrained(files["qwen3"], backend="cpu")
    llama = load_pretrained(files["llama"], backend="cpu").model.state_dict()
    np.testing.assert_array_equal(llama[query], state["model.layers.1.self_attn.q_proj.weight"])
    np.testing.assert_array_equal(
        llama["blocks.1.attention.key.weight"], state["model.layers.1.self_attn.k_proj.weight"]
    )


def test_quantized_tensors_are_decoded(tmp_path: Path) -> None:
    state = tensors_of(random_state(), "llama")
    packed = gguf.quants.quantize(state["token_embd.weight"], gguf.GGMLQuantizationType.Q8_0)

    def change(writer: gguf.GGUFWriter, tensors: dict[str, Host]) -> None:
        tensors.pop("token_embd.weight")
        writer.add_tensor("token_embd.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    path = write(tmp_path / "model.gguf", state, "llama", change)
    got = load_pretrained(path, backend="cpu").model.state_dict()["token_embedding.weight"]
    np.testing.assert_array_equal(got, gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0))


def config_of(path: Path) -> MiniConfig:
    config = load_pretrained(path, backend="cpu").model.config  # type: ignore[attr-defined]  # of a Mini
    assert isinstance(config, MiniConfig)
    return config


def test_metadata_become_the_configuration(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter, tensors: dict[str, Host]) -> None:
        writer.add_rope_freq_base(1e5)
        writer.add_vocab_size(VOCABULARY)
        writer.add_rope_dimension_count(16)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(16)

    assert config_of(llama_file(tmp_path / "model.gguf", change)) == MiniConfig(
        vocabulary=VOCABULARY,
        context=CONTEXT,
        width=WIDTH,
        feed_forward=HIDDEN,
        rope_theta=1e5,
        eps=1e-6,
        tied_head=False,
        head_size=16,
        rope_scaling=RopeScaling(kind="yarn", factor=4.0, original_context=16),
    )


def test_a_factor_without_a_type_is_linear(tmp_path: Path) -> None:
    scaling = config_of(llama_file(tmp_path / "model.gguf", lambda w, t: w.add_rope_scaling_factor(2.0))).rope_scaling
    assert scaling == RopeScaling(kind="linear", factor=2.0)


def llama3_divisors(factor: float, *, theta: float = 10_000.0, size: int = 16) -> Host:
    """The tensor as llama.cpp's converter makes it, written from the description of Llama 3.1."""
    made = []
    for i in range(0, size, 2):
        frequency = theta ** (-i / size)
        wavelength = 2 * np.pi / frequency
        if wavelength < 8192 / 4:
            made.append(1.0)
        elif wavelength > 8192 / 1:
            made.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            made.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(made, np.float32)


def test_factors_of_llama_3_are_recognised(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter, tensors: dict[str, Host]) -> None:
        tensors["rope_freqs.weight"] = llama3_divisors(32.0)

    scaling = config_of(llama_file(tmp_path / "model.gguf", change)).rope_scaling
    assert scaling == RopeScaling(kind="llama3", factor=32.0, original_context=8192, low=1.0, high=4.0)


def test_other_factors_are_refused(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter, tensors: dict[str, Host]) -> None:
        tensors["rope_freqs.weight"] = np.linspace(1, 8, 8, dtype=np.float32)

    with pytest.raises(Unsupported, match=r"rope_freqs\.weight is not what the scaling of Llama 3"):
        load_pretrained(llama_file(tmp_path / "model.gguf", change), backend="cpu")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda w, t: w.add_expert_count(8), Unsupported, r"expert_count is 8"),
        (lambda w, t: w.add_sliding_window(32), Unsupported, r"attention.sliding_window is 32"),
        (lambda w, t: w.add_rope_dimension_count(8), Unsupported, r"rope.dimension_count is 8"),
        (lambda w, t: w.add_value_length(8), Unsupported, r"attention.value_length is 8"),
        (lambda w, t: w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE), Unsupported, r"rope.scaling.type is"),
        (lambda w, t: w.add_rope_freq_base(1.0), CheckpointError, r"rope theta is 1.0; wanted more than 1"),
        (lambda w, t: w.add_logit_scale(0.5), Unsupported, r"logit_scale is 0.5"),
        (lambda w, t: t.pop("blk.1.ffn_up.weight"), CheckpointError, r"no tensor 'blk.1.ffn_up.weight'"),
        (lambda w, t: t.pop("token_embd.weight"), CheckpointError, r"no tensor 'token_embd.weight'"),
        (lambda w, t: t.update(other=np.zeros(3, np.float32)), CheckpointError, r"tensor 'other' has no place"),
        (
            lambda w, t: t.update({"output_norm.weight": np.zeros(3, np.float32)}),
            CheckpointError,
            r"'output_norm.weight' has shape \(3,\); wanted \(64,\)",
        ),
        (
            lambda w, t: t.update({"output_norm.weight": np.full(WIDTH, np.inf, np.float32)}),
            NonFiniteError,
            r"'output_norm.weight' has 64 values",
        ),
    ],
)
def test_what_would_be_another_function_is_refused(
    change: Change, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        load_pretrained(llama_file(tmp_path / "model.gguf", change), backend="cpu")


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", tensors_of(random_state(), "llama"), "smollm3")
    with pytest.raises(Unsupported, match=r"general\.architecture is 'smollm3'"):
        load_pretrained(path, backend="cpu")


def test_a_shorter_context_is_taken_and_a_longer_one_refused(tmp_path: Path) -> None:
    path = llama_file(tmp_path / "model.gguf")
    short, whole = (load_pretrained(path, backend="cpu", context=each).model for each in (10, None))
    assert short.context == 10 and whole.context == CONTEXT
    np.testing.assert_array_equal(logits(short, IDS[:10]), logits(whole, IDS[:10]))
    for wrong, wanted in ((0, "a whole number of at least 1"), (True, "a whole number"), (CONTEXT + 1, "1 to 64")):
        with pytest.raises(ConfigError, match=f"context is {wrong}; wanted {wanted}"):
            load_pretrained(path, backend="cpu", context=wrong)


JUNK = st.integers() | st.floats() | st.booleans() | st.text(max_size=5) | st.lists(st.integers(0, 9), max_size=3)
KEYS = [f"llama.{key}" for key in sorted(KNOWN["llama"])] + ["general.architecture", "tokenizer.ggml.eos_token_id"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GgufFile]:
    with GgufFile(llama_file(tmp_path_factory.mktemp("gguf") / "model.gguf")) as file:
        yield file


@given(junk=st.dictionaries(st.sampled_from(KEYS), JUNK, max_size=4))
def test_no_metadata_get_past_the_errors_of_turret(plain: GgufFile, junk: dict[str, Any]) -> None:
    try:
        described = read_metadata(dict(plain.metadata) | junk, plain)
    except TurretError as error:
        assert str(plain.path) in str(error)
    else:
        assert described.config.vocabulary == VOCABULARY


def test_a_tokenizer_that_is_not_known_can_be_left_out(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter, tensors: dict[str, Host]) -> None:
        writer.add_tokenizer_model("t5")

    path = llama_file(tmp_path / "model.gguf", change)
    with pytest.raises(Unsupported, match=r"model\.gguf: tokenizer\.ggml\.model is 't5'.*tokenizer=False loads"):
        load_pretrained(path, backend="cpu")
    assert load_pretrained(path, backend="cpu", tokenizer=False).allowed == VOCABULARY
