"""The architectures that the pinned llama.cpp loads, and the memory that each keeps for its context.

The names are `LLM_ARCH_NAMES` of its `src/llama-arch.cpp`; a test compares them with the pinned source if
that is in the cache. The kinds are taken from `src/models/*.cpp` (`load_arch_hparams`),
`llama_model::create_memory` and `llm_arch_is_recurrent`, `llm_arch_is_hybrid`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from meshd.base.errors import UserError
from meshd.model.gguf import Header


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


# those of which no kind of memory is known here: their caches are bounded from above
_NOT_LOOKED_AT = _names(
    """
    bailingmoe3 deepseek32 deepseek4 dflash dots3note eagle3 gemma4-assistant glm-dsa glm5-next
    graniteswitch hrm_text hy_v4 kimi-k3 llama-embed minimax-01 minimax-m3 nanbeige plamo2 pockettts
    qwen3tts qwen4exp t5 t5encoder
    """
)
KNOWN_ARCHITECTURES = frozenset().union(
    PLAIN,
    NO_CACHE,
    RECURRENT,
    HYBRID_BY_HEADS,
    HYBRID_BY_INTERVAL,
    HYBRID_BOTH,
    WINDOWED,
    _NOT_LOOKED_AT,
)
"""All that the pinned llama.cpp loads, but for `clip`, which projectors of images have."""

# The names of some of them in Ollama's own engine.
_OF_OLLAMA: Mapping[str, str] = {
    "glm4moelite": "deepseek2",
    "gptoss": "gpt-oss",
    "qwen25vl": "qwen2vl",
    "deepseekocr": "deepseek2-ocr",
}
PROJECTOR = "clip"  # the architecture of all mmproj files
# Values of `general.type` for files that are no model (GGUFType of gguf-py): description and hint.
_PROJECTOR_WORDS = (
    "it is the part of a model that sees images or hears audio (mmproj), not a model",
    "name the model's own file with `--model`, and this one with `--mmproj`",
)
_NO_MODEL: Mapping[str, tuple[str, str]] = {
    "adapter": (
        "it is an adapter (LoRA), which changes a model, not a model",
        "name the model that it was made for; llama.cpp's `llama-export-lora` merges the two into one file",
    ),
    "imatrix": (
        "it is an importance matrix, which llama-quantize uses, not a model",
        "name the model's own file with `--model`",
    ),
    "mmproj": _PROJECTOR_WORDS,
}


def check_projector(header: Header, *, label: str) -> None:
    """Check that a file is part of a multimodal model. Raises UserError; `label` names the file."""
    architecture = header.text("general.architecture")
    if architecture != PROJECTOR:
        raise UserError(
            f"`{label}` is not an mmproj file: its architecture is `{architecture[:80]}`",
            hint="download the mmproj file of the model; most repositories name it `mmproj-….gguf`",
        )


def check_is_model(header: Header, *, label: str) -> None:
    """Check that a GGUF file is a model. Raises UserError; `label` names the file."""
    is_projector = header.text("general.architecture") == PROJECTOR
    kind = "mmproj" if is_projector else header.text("general.type")
    if kind in _NO_MODEL:
        what, hint = _NO_MODEL[kind]
        raise UserError(f"`{label}` cannot be served: {what}", hint=hint)


def check_architecture(header: Header, *, label: str) -> None:
    """Check that the pinned llama.cpp can load the model. Raises UserError; `label` names the file."""
    architecture = header.text("general.architecture")
    if architecture in KNOWN_ARCHITECTURES:
        return
    if not architecture:
        raise UserError(
            f"`{label}` does not say which architecture it has", hint="download the model again, as GGUF"
        )
    if (upstream := _OF_OLLAMA.get(architecture)) is not None:
        raise UserError(
            f"`{label}` has the architecture `{architecture}`, which only Ollama knows; in llama.cpp it is "
            f"`{upstream}`, with other metadata",
            hint="use the GGUF file of the same model from Hugging Face: `--model hf:ORG/REPO:QUANT`",
        )
    raise UserError(
        f"`{label}` has the architecture `{architecture[:64]}`, which the pinned llama.cpp does not know",
        hint="use the GGUF file of the same model from Hugging Face (`--model hf:ORG/REPO:QUANT`), or a "
        "newer meshd if the model is new",
    )
