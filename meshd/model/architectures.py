"""The kind of memory that each architecture keeps for its context, as the pinned llama.cpp allocates it.

Taken from `src/models/*.cpp` (`load_arch_hparams`), `llama_model::create_memory` and `llm_arch_is_recurrent`,
`llm_arch_is_hybrid` of the pinned commit. An architecture in none of these tables is treated as unknown: its
cache is bounded from above, and the plan says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# every layer keeps K and V for the whole context (or only K, when the file has the MLA head sizes)
PLAIN = _names(
    """
    apertus arcee arctic baichuan bailingmoe bailingmoe2 bitnet bloom chameleon chatglm codeshell
    cogvlm command-r dbrx deci deepseek deepseek2 deepseek2-ocr dots1 ernie4_5 ernie4_5-moe exaone
    falcon gemma glm4 glm4moe gpt2 gptj gptneox granite granitemoe grok grovemoe hunyuan-dense
    hunyuan-moe hunyuan_vl hy_v3 internlm2 jais jais2 llama maincoder minicpm minicpm3 minimax-m2
    mistral3 mistral4 mpt nemotron olmo olmoe openelm orion paddleocr pangu-embedded phi2 phi3
    phimoe plamo plm qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe refact seed_oss
    smollm3 stablelm starcoder starcoder2 talkie xverse
    """
)

# no cache at all: encoders and diffusion models
NO_CACHE = _names(
    """
    bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert
    wavtokenizer-dec gemma-embedding dream llada llada-moe rnd1
    """
)

# every layer keeps a state of fixed size instead of a cache
RECURRENT = _names(
    """
    mamba mamba2 rwkv6 rwkv6qwen2 rwkv7 arwkv7
    """
)

# layers without K/V heads keep a state, the others a cache
HYBRID_BY_HEADS = _names(
    """
    jamba granitehybrid lfm2 lfm2moe nemotron_h nemotron_h_moe kimi-linear
    """
)

# `attention.recurrent_layers`, else every layer but each `full_attention_interval`th keeps a state
HYBRID_BY_INTERVAL = _names(
    """
    qwen3next qwen35 qwen35moe
    """
)

# every layer keeps both
HYBRID_BOTH = frozenset({"falcon-h1"})

# recurrent, but the group count of the file is not read by upstream
NO_STATE_GROUPS = frozenset({"mamba", "jamba"})


@dataclass(frozen=True, slots=True)
class AttentionWindow:
    """Sliding-window attention: of `pattern` consecutive layers, all but one keep only a window.

    `pattern` 0 means that the file must list the layers. `first_full`: the full layer comes first. `tokens`:
    the window if the file has none. `fixed`: the file's number is ignored. `optional`: without a window in
    the file there are no windowed layers.
    """

    pattern: int = 0
    first_full: bool = False
    tokens: int = 0
    fixed: bool = False
    optional: bool = False


WINDOWED: Mapping[str, AttentionWindow] = {
    "afmoe": AttentionWindow(4, optional=True),
    "cohere2": AttentionWindow(4),
    "cohere2moe": AttentionWindow(4, first_full=True),
    "exaone4": AttentionWindow(4, tokens=4096),  # only with 64 layers, see cache.py
    "exaone-moe": AttentionWindow(4, tokens=128),
    "gemma2": AttentionWindow(2, tokens=4096),
    "gemma3": AttentionWindow(6, optional=True),
    "gemma3n": AttentionWindow(5),
    "gemma4": AttentionWindow(),
    "gpt-oss": AttentionWindow(2),
    "granite_swa": AttentionWindow(),
    "laguna": AttentionWindow(4, first_full=True, optional=True),
    "llama4": AttentionWindow(4, tokens=8192, fixed=True),  # none at all when the file says 0
    "maple": AttentionWindow(),
    "mellum": AttentionWindow(4, optional=True),
    "mimo2": AttentionWindow(),
    "muse-glimmer": AttentionWindow(4),
    "olmo2": AttentionWindow(4, optional=True),
    "plamo3": AttentionWindow(8, optional=True),
    "smallthinker": AttentionWindow(4, first_full=True, tokens=4096, fixed=True, optional=True),
    "spark2_5": AttentionWindow(),
    "step35": AttentionWindow(),
}

# layers from here on reuse the cache of earlier ones; gemma4 has the number in the file
FIRST_SHARED_LAYER: Mapping[str, int] = {"gemma3n": 20}
