"""The architectures that the pinned llama.cpp loads: `LLM_ARCH_NAMES` of its `src/llama-arch.cpp`.

`clip`, for the projectors that a model's images need, and `(unknown)` are left out. A test compares this list
with the pinned source if that is in the cache.
"""

from collections.abc import Mapping

from meshd.base.errors import UserError
from meshd.model.gguf import Header

_NAMES = """
    afmoe apertus arcee arctic arwkv7 baichuan bailingmoe bailingmoe2 bailingmoe3 bert bitnet bloom
    chameleon chatglm codeshell cogvlm cohere2 cohere2moe command-r dbrx deci deepseek deepseek2
    deepseek2-ocr deepseek32 deepseek4 dflash dots1 dots3note dream eagle3 ernie4_5 ernie4_5-moe
    eurobert exaone exaone-moe exaone4 falcon falcon-h1 gemma gemma-embedding gemma2 gemma3 gemma3n
    gemma4 gemma4-assistant glm-dsa glm4 glm4moe glm5-next gpt-oss gpt2 gptj gptneox granite granite_swa
    granitehybrid granitemoe graniteswitch grok grovemoe hrm_text hunyuan-dense hunyuan-moe hunyuan_vl
    hy_v3 hy_v4 internlm2 jais jais2 jamba jina-bert-v2 jina-bert-v3 kimi-k3 kimi-linear laguna lfm2
    lfm2moe llada llada-moe llama llama-embed llama4 maincoder mamba mamba2 maple mellum mimo2 minicpm
    minicpm3 minimax-01 minimax-m2 minimax-m3 mistral3 mistral4 modern-bert mpt muse-glimmer nanbeige
    nemotron nemotron_h nemotron_h_moe neo-bert nomic-bert nomic-bert-moe olmo olmo2 olmoe openelm orion
    paddleocr pangu-embedded phi2 phi3 phimoe plamo plamo2 plamo3 plm pockettts qwen qwen2 qwen2moe
    qwen2vl qwen3 qwen35 qwen35moe qwen3moe qwen3next qwen3tts qwen3vl qwen3vlmoe qwen4exp refact rnd1
    rwkv6 rwkv6qwen2 rwkv7 seed_oss smallthinker smollm3 spark2_5 stablelm starcoder starcoder2 step35
    t5 t5encoder talkie wavtokenizer-dec xverse
"""
KNOWN_ARCHITECTURES = frozenset(_NAMES.split())

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
