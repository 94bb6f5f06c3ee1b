"""Small models of many architectures, made on demand: what a split must not change is kept by each otherwise.

Keys and tensors are those of the pinned llama.cpp (`load_arch_hparams` and `load_arch_tensors` in
`src/models/*.cpp`). Every model has six layers, so that a head and four workers have at least one each.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

from gguf import GGMLQuantizationType

from tests.e2e.models import made
from tests.e2e.random_gguf import F16, F32, Q4_0, Q8_0, RandomModel
from tests.e2e.random_parts import (
    HEAD,
    HEADS,
    KV_HEADS,
    LAYERS,
    SHARP,
    WIDTH,
    attention,
    attention_sizes,
    dense,
    ends,
    mixture,
    mixture_sizes,
    rms,
)
from tests.e2e.random_recurrent import granite_hybrid, mamba, qwen3next, rwkv7

WINDOW = 32  # tokens, of the windowed models
WIDE_EXPERTS = 128


def _plain(
    path: Path,
    *,
    name: str,
    kind: GGMLQuantizationType,
    tied: bool = False,
    normed: bool = False,
    biased: bool = False,
    width: int = WIDTH,
    inner: int = 128,
    experts: int = 0,
) -> None:
    """Attention and a dense block, or `experts`, in each layer.

    `normed`: queries and keys are, too; `biased`: queries, keys and values are.
    """
    model = RandomModel(path, name, width=width, layers=LAYERS, kind=kind)
    rms(model)
    attention_sizes(model)
    model.integer("feed_forward_length", inner)
    if experts:
        mixture_sizes(model, experts, 2, inner)
    ends(model, tied=tied)
    for layer in range(model.layers):
        block = f"blk.{layer}"
        attention(model, block, normed=normed)
        if biased:
            model.vector(f"{block}.attn_q.bias", HEADS * HEAD)
            model.vector(f"{block}.attn_k.bias", KV_HEADS * HEAD)
            model.vector(f"{block}.attn_v.bias", KV_HEADS * HEAD)
        model.norm(f"{block}.ffn_norm")
        if experts:
            mixture(model, block, experts, inner)
        else:
            dense(model, block, inner)
    model.finish()


def _gemma3(
    path: Path, *, kind: GGMLQuantizationType = Q4_0, inner: int = 128, kv_heads: int = KV_HEADS
) -> None:
    """Two windowed layers, then a full one."""
    model = RandomModel(path, "gemma3", width=WIDTH, layers=LAYERS, kind=kind)
    rms(model)
    attention_sizes(model, kv_heads=kv_heads)
    model.integer("attention.sliding_window", WINDOW)
    model.integer("attention.sliding_window_pattern", 3)
    model.integer("feed_forward_length", inner)
    ends(model, tied=True)
    for layer in range(model.layers):
        block = f"blk.{layer}"
        attention(model, block, normed=True, kv_heads=kv_heads)
        model.norm(f"{block}.post_attention_norm")
        model.norm(f"{block}.ffn_norm")
        dense(model, block, inner)
        model.norm(f"{block}.post_ffw_norm")
    model.finish()


def _gpt_oss(path: Path, *, kind: GGMLQuantizationType = Q8_0, inner: int = 64, mxfp4: bool = True) -> None:
    """Every second layer windowed, attention sinks, experts with biases."""
    model = RandomModel(path, "gpt-oss", width=WIDTH, layers=LAYERS, kind=kind)
    experts = 8
    rms(model)
    attention_sizes(model)
    model.integer("attention.sliding_window", WINDOW)
    mixture_sizes(model, experts, 2, inner)
    ends(model, tied=False)
    for layer in range(model.layers):
        block = f"blk.{layer}"
        attention(model, block)
        model.vector(f"{block}.attn_output.bias", WIDTH)
        model.vector(f"{block}.attn_sinks.weight", HEADS, spread=1.0)
        model.norm(f"{block}.post_attention_norm")
        mixture(model, block, experts, inner, mxfp4=mxfp4)
        model.vector(f"{block}.ffn_gate_inp.bias", experts)
        model.vector(f"{block}.ffn_gate_exps.bias", inner, experts)
        model.vector(f"{block}.ffn_up_exps.bias", inner, experts)
        model.vector(f"{block}.ffn_down_exps.bias", WIDTH, experts)
    model.finish()


def _qwen3moe(
    path: Path,
    *,
    kind: GGMLQuantizationType = Q4_0,
    experts: int = WIDE_EXPERTS,
    inner: int = 32,
    dense_inner: int = 0,
) -> None:
    """The one with most experts, 8 of them at work. `dense_inner`: of a layer without experts, if one was."""
    model = RandomModel(path, "qwen3moe", width=WIDTH, layers=LAYERS, kind=kind)
    rms(model)
    attention_sizes(model)
    mixture_sizes(model, experts, 8, inner)
    if dense_inner:
        model.integer("feed_forward_length", dense_inner)
    ends(model, tied=False)
    for layer in range(model.layers):
        block = f"blk.{layer}"
        attention(model, block, normed=True)
        model.norm(f"{block}.ffn_norm")
        mixture(model, block, experts, inner)
    model.finish()


def _deepseek2(path: Path) -> None:
    """Multi-head latent attention; a dense layer first, then experts beside a shared one."""
    model = RandomModel(path, "deepseek2", width=WIDTH, layers=LAYERS, kind=Q8_0)
    plain, rotated, value, latent_query, latent = 32, 32, 32, 64, 64
    experts, inner = 16, 32
    rms(model)
    model.integer("attention.head_count", HEADS)
    model.integer("attention.head_count_kv", 1)
    model.integer("attention.q_lora_rank", latent_query)
    model.integer("attention.kv_lora_rank", latent)
    model.integer("attention.key_length", latent + rotated)
    model.integer("attention.value_length", latent)
    model.integer("attention.key_length_mla", plain + rotated)
    model.integer("attention.value_length_mla", value)
    model.integer("rope.dimension_count", rotated)
    model.integer("feed_forward_length", 128)
    model.integer("leading_dense_block_count", 1)
    model.integer("expert_shared_count", 1)
    model.real("expert_weights_scale", 1.0)
    mixture_sizes(model, experts, 4, inner)
    ends(model, tied=False)
    for layer in range(model.layers):
        block = f"blk.{layer}"
        model.norm(f"{block}.attn_norm")
        model.matrix(f"{block}.attn_q_a", WIDTH, latent_query)
        model.norm(f"{block}.attn_q_a_norm", latent_query)
        model.matrix(f"{block}.attn_q_b", latent_query, HEADS * (plain + rotated), gain=SHARP)
        model.matrix(f"{block}.attn_kv_a_mqa", WIDTH, latent + rotated, gain=SHARP)
        model.norm(f"{block}.attn_kv_a_norm", latent)
        model.matrix(f"{block}.attn_k_b", plain, latent, HEADS)
        model.matrix(f"{block}.attn_v_b", latent, value, HEADS)
        model.matrix(f"{block}.attn_output", HEADS * value, WIDTH)
        model.norm(f"{block}.ffn_norm")
        if layer == 0:
            dense(model, block, 128)
        else:
            mixture(model, block, experts, inner)
            dense(model, block, inner, suffix="_shexp")
    model.finish()


MODELS: Mapping[str, Callable[[Path], None]] = {
    "llama": partial(_plain, name="llama", kind=Q8_0),
    "qwen3": partial(_plain, name="qwen3", kind=F16, tied=True, normed=True),
    "gemma3": _gemma3,
    "gpt-oss": _gpt_oss,
    "qwen3moe": _qwen3moe,
    "deepseek2": _deepseek2,
    "mamba": mamba,
    "rwkv7": rwkv7,
    "granitehybrid": granite_hybrid,
    "qwen3next": qwen3next,
}

# Those of which each of two workers can have a part of every matrix (llama.cpp divides the feed-forward part,
# and each expert, by blocks of 128): in F32, where another order of adding changes an answer least
DIVISIBLE: Mapping[str, Callable[[Path], None]] = {
    "llama": partial(_plain, name="llama", kind=F32, inner=256),
    "llama with experts": partial(_plain, name="llama", kind=F32, inner=256, experts=4),
    "llama with experts in Q8_0": partial(_plain, name="llama", kind=Q8_0, inner=256, experts=4),
    "qwen2": partial(_plain, name="qwen2", kind=F32, width=HEADS * HEAD, biased=True, inner=256),
    "qwen3": partial(_plain, name="qwen3", kind=F32, tied=True, normed=True, inner=256),
    "qwen3moe": partial(_qwen3moe, kind=F32, experts=16, inner=256),
    "gemma3": partial(_gemma3, kind=F32, inner=256),
    "gpt-oss": partial(_gpt_oss, kind=F32, inner=256, mxfp4=False),
}

# Those that llama.cpp cannot divide among workers (meshd/model/indivisible.py)
INDIVISIBLE: Mapping[str, Callable[[Path], None]] = {
    "gemma3 with one KV head": partial(_gemma3, kind=F32, inner=256, kv_heads=1),
    "llama with one block in a row": partial(_plain, name="llama", kind=Q8_0, inner=32),
    "qwen3moe with twice the rows": partial(_qwen3moe, kind=F32, experts=16, inner=256, dense_inner=128),
}


@cache
def random_model(architecture: str) -> Path:
    """The file of one of MODELS, at most 5 MB, made if it is not there yet."""
    return made(f"random-{architecture}.gguf", MODELS[architecture])


@cache
def divisible_model(name: str) -> Path:
    """The file of one of DIVISIBLE, made if it is not there yet."""
    return made(f"divisible-{name.replace(' ', '-')}.gguf", DIVISIBLE[name])


@cache
def indivisible_model(name: str) -> Path:
    """The file of one of INDIVISIBLE, made if it is not there yet."""
    return made(f"indivisible-{name.replace(' ', '-')}.gguf", INDIVISIBLE[name])
