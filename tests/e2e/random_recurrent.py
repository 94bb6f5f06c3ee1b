"""Random models whose layers keep a state instead of a cache, or some of them the one and some the other."""

from pathlib import Path

from tests.e2e.random_gguf import F16, Q8_0, RandomModel
from tests.e2e.random_parts import (
    HEAD,
    HEADS,
    LAYERS,
    WIDTH,
    attention,
    attention_sizes,
    dense,
    ends,
    mixture,
    mixture_sizes,
    rms,
)


def _state_sizes(model: RandomModel, kernel: int, inner: int, state: int, rank: int) -> None:
    model.integer("ssm.conv_kernel", kernel)
    model.integer("ssm.inner_size", inner)
    model.integer("ssm.state_size", state)
    model.integer("ssm.time_step_rank", rank)


def mamba(path: Path) -> None:
    model = RandomModel(path, "mamba", width=WIDTH, layers=LAYERS, kind=F16)
    inner, state, rank, kernel = 2 * WIDTH, 16, 8, 4
    rms(model)
    _state_sizes(model, kernel, inner, state, rank)
    model.integer("attention.head_count", 0)
    model.integer("feed_forward_length", 0)
    ends(model, tied=True)
    for layer in range(model.layers):
        block = f"blk.{layer}"
        model.norm(f"{block}.attn_norm")
        model.matrix(f"{block}.ssm_in", WIDTH, 2 * inner)
        model.vector(f"{block}.ssm_conv1d.weight", kernel, inner, spread=0.5)
        model.vector(f"{block}.ssm_conv1d.bias", inner)
        model.matrix(f"{block}.ssm_x", inner, rank + 2 * state, gain=3.0)
        model.matrix(f"{block}.ssm_dt", rank, inner)
        model.vector(f"{block}.ssm_dt.bias", inner, centre=-4.0, spread=1.0)
        model.decay(f"{block}.ssm_a", state, inner)
        model.vector(f"{block}.ssm_d", inner, centre=1.0)
        model.matrix(f"{block}.ssm_out", inner, WIDTH)
    model.finish()


def rwkv7(path: Path) -> None:
    """The first layer's values are used by all others, wherever those lie."""
    model = RandomModel(path, "rwkv7", width=WIDTH, layers=LAYERS, kind=F16)
    rank, inner = 32, 128
    model.real("attention.layer_norm_epsilon", 1e-5)
    model.integer("attention.head_count", 0)
    model.integer("wkv.head_size", WIDTH)  # the kernel wants a multiple of 64 where there is AVX-512
    for kind in ("decay", "iclr", "value_residual_mix", "gate"):
        model.integer(f"attention.{kind}_lora_rank", rank)
    model.integer("token_shift_count", 2)
    model.integer("feed_forward_length", inner)
    model.norm("token_embd_norm")
    model.vector("token_embd_norm.bias", WIDTH)
    ends(model, tied=False)
    model.vector("output_norm.bias", WIDTH)
    for layer in range(model.layers):
        block = f"blk.{layer}"
        for name in ("attn_norm", "attn_norm_2", "time_mix_ln"):
            model.norm(f"{block}.{name}")
            model.vector(f"{block}.{name}.bias", WIDTH)
        for name, centre in (("w", -3.0), ("a", -3.0), ("v", 0.0)):  # larger ones make the state explode
            model.vector(f"{block}.time_mix_{name}0.weight", WIDTH, centre=centre)
            model.matrix(f"{block}.time_mix_{name}1", WIDTH, rank, gain=0.5)
            model.matrix(f"{block}.time_mix_{name}2", rank, WIDTH)
        model.matrix(f"{block}.time_mix_g1", WIDTH, rank, gain=2.0)
        model.matrix(f"{block}.time_mix_g2", rank, WIDTH, gain=3.0)
        model.vector(f"{block}.time_mix_lerp_fused.weight", WIDTH, 1, 1, 6, centre=0.5, spread=0.3)
        for name, centre in (("k_k", 1.0), ("k_a", 1.0), ("r_k", 0.2)):
            model.vector(f"{block}.time_mix_{name}.weight", WIDTH, centre=centre)
        for name in ("key", "value", "receptance", "output"):
            model.matrix(f"{block}.time_mix_{name}", WIDTH, WIDTH)
        model.vector(f"{block}.channel_mix_lerp_k.weight", WIDTH, 1, 1, centre=0.5, spread=0.3)
        model.matrix(f"{block}.channel_mix_key", WIDTH, inner)
        model.matrix(f"{block}.channel_mix_value", inner, WIDTH)
    model.finish()


def granite_hybrid(path: Path) -> None:
    """Mamba 2 with an attention layer at the beginning of each half."""
    model = RandomModel(path, "granitehybrid", width=WIDTH, layers=LAYERS, kind=Q8_0)
    inner, state, heads, kernel = 2 * WIDTH, 16, 4, 4
    convolved = inner + 2 * state
    attended = (0, 3)
    rms(model)
    attention_sizes(model, attended)
    _state_sizes(model, kernel, inner, state, heads)
    model.integer("ssm.group_count", 1)
    model.integer("feed_forward_length", 128)
    ends(model, tied=True)
    for layer in range(model.layers):
        block = f"blk.{layer}"
        if layer in attended:
            attention(model, block)
        else:
            model.norm(f"{block}.attn_norm")
            model.matrix(f"{block}.ssm_in", WIDTH, inner + convolved + heads)
            model.vector(f"{block}.ssm_conv1d.weight", kernel, convolved, spread=0.5)
            model.vector(f"{block}.ssm_conv1d.bias", convolved)
            model.vector(f"{block}.ssm_dt.bias", heads, centre=-3.0, spread=1.0)
            model.decay(f"{block}.ssm_a", 1, heads)
            model.vector(f"{block}.ssm_d", 1, heads, centre=1.0)
            model.vector(f"{block}.ssm_norm.weight", inner, 1, centre=1.0)
            model.matrix(f"{block}.ssm_out", inner, WIDTH)
        model.norm(f"{block}.ffn_norm")
        dense(model, block, 128)
    model.finish()


def qwen3next(path: Path) -> None:
    """Gated delta net, every third layer gated attention; experts beside a shared one in all."""
    model = RandomModel(path, "qwen3next", width=WIDTH, layers=LAYERS, kind=Q8_0)
    experts, inner, interval, kernel = 16, 32, 3, 4
    size, key_heads, value_heads = 32, 2, 4
    keys, values = size * key_heads, size * value_heads
    rms(model)
    attention_sizes(model)
    mixture_sizes(model, experts, 4, inner)
    model.integer("expert_shared_feed_forward_length", inner)
    model.integer("full_attention_interval", interval)
    _state_sizes(model, kernel, values, size, value_heads)
    model.integer("ssm.group_count", key_heads)
    ends(model, tied=False)
    for layer in range(model.layers):
        block = f"blk.{layer}"
        if (layer + 1) % interval == 0:
            attention(model, block, query=2 * HEADS * HEAD, normed=True)
        else:
            model.norm(f"{block}.attn_norm")
            model.matrix(f"{block}.attn_qkv", WIDTH, 2 * keys + values)
            model.matrix(f"{block}.attn_gate", WIDTH, values)
            model.vector(f"{block}.ssm_conv1d.weight", kernel, 2 * keys + values, spread=0.5)
            model.vector(f"{block}.ssm_dt.bias", value_heads, centre=-4.0, spread=1.0)
            model.decay(f"{block}.ssm_a", value_heads)
            model.matrix(f"{block}.ssm_ba", WIDTH, 2 * value_heads)
            model.norm(f"{block}.ssm_norm", size)
            model.matrix(f"{block}.ssm_out", values, WIDTH)
        model.norm(f"{block}.post_attention_norm")
        mixture(model, block, experts, inner)
        model.vector(f"{block}.ffn_gate_inp_shexp.weight", WIDTH)
        dense(model, block, inner, suffix="_shexp")
    model.finish()
