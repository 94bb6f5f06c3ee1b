"""Write parts that many architectures share: heads, feed-forward blocks, experts, both ends of a model."""

from collections.abc import Sequence

from tests.e2e.random_gguf import F32, MXFP4, RandomModel

LAYERS = 6
WIDTH = 64
HEADS = 4
KV_HEADS = 2
HEAD = 32  # elements
SHARP = 2.0  # gain of queries and keys, so that attention picks out few tokens


def attention_sizes(model: RandomModel, attended: Sequence[int] = (), *, kv_heads: int = KV_HEADS) -> None:
    """`attended`: the layers that have attention, when not all have."""
    model.integer("attention.head_count", HEADS)
    if attended:
        heads = [kv_heads if layer in attended else 0 for layer in range(model.layers)]
        model.integers("attention.head_count_kv", heads)
    else:
        model.integer("attention.head_count_kv", kv_heads)
    model.integer("attention.key_length", HEAD)
    model.integer("attention.value_length", HEAD)
    model.integer("rope.dimension_count", HEAD)


def rms(model: RandomModel) -> None:
    model.real("attention.layer_norm_rms_epsilon", 1e-6)


def ends(model: RandomModel, *, tied: bool) -> None:
    model.vocabulary("token_embd")
    model.norm("output_norm")
    if not tied:
        model.vocabulary("output")


def attention(
    model: RandomModel,
    block: str,
    *,
    query: int = HEADS * HEAD,
    normed: bool = False,
    kv_heads: int = KV_HEADS,
) -> None:
    gain = 1.0 if normed else SHARP
    model.norm(f"{block}.attn_norm")
    model.matrix(f"{block}.attn_q", model.width, query, gain=gain)
    model.matrix(f"{block}.attn_k", model.width, kv_heads * HEAD, gain=gain)
    model.matrix(f"{block}.attn_v", model.width, kv_heads * HEAD)
    model.matrix(f"{block}.attn_output", HEADS * HEAD, model.width)
    if normed:
        model.norm(f"{block}.attn_q_norm", HEAD, centre=SHARP)
        model.norm(f"{block}.attn_k_norm", HEAD, centre=SHARP)


def dense(model: RandomModel, block: str, inner: int, *, suffix: str = "") -> None:
    model.matrix(f"{block}.ffn_gate{suffix}", model.width, inner)
    model.matrix(f"{block}.ffn_up{suffix}", model.width, inner)
    model.matrix(f"{block}.ffn_down{suffix}", inner, model.width)


def mixture(model: RandomModel, block: str, count: int, inner: int, *, mxfp4: bool = False) -> None:
    """`count` experts of width `inner`, and what chooses among them."""
    kind = MXFP4 if mxfp4 else None
    model.matrix(f"{block}.ffn_gate_inp", model.width, count, gain=2.0, kind=F32)
    model.matrix(f"{block}.ffn_gate_exps", model.width, inner, count, kind=kind)
    model.matrix(f"{block}.ffn_up_exps", model.width, inner, count, kind=kind)
    model.matrix(f"{block}.ffn_down_exps", inner, model.width, count, gain=2.0, kind=kind)


def mixture_sizes(model: RandomModel, count: int, used: int, inner: int) -> None:
    model.integer("expert_count", count)
    model.integer("expert_used_count", used)
    model.integer("expert_feed_forward_length", inner)
