"""Short names of a few models, for `--model glm`: which file of which repository each is. Pure."""

from collections.abc import Mapping

from meshd.model.gguf_names import GGUF_SUFFIX
from meshd.model.model_name import HubName, parse_model_name

DEMO = "smollm2"  # the model of `meshd demo`, which comes from the Python package index
DEMO_STEM = "SmolLM2-135M-Instruct.Q4_1"
DEMO_FINGERPRINT = "570760e3492da2f0e896dcdde144711f48d754472738e2c21394a4e685763c29"
SHORT_NAMES: Mapping[str, HubName] = {
    "glm": HubName("unsloth", "GLM-4.7-Flash-GGUF", "Q4_K_M"),
    "qwen3": HubName("unsloth", "Qwen3-Coder-30B-A3B-Instruct-GGUF", "Q4_K_M"),
}


def stem_of(name: HubName) -> str:
    """The name of its file, without `.gguf`, as its authors call it: by it other stores have it, too."""
    return f"{name.repo.removesuffix('-GGUF')}-{name.choice}"


def hub_name_of(text: str) -> HubName | None:
    """The model of Hugging Face that a text means, by its own name or a short one."""
    if (known := SHORT_NAMES.get(text.lower().removesuffix(GGUF_SUFFIX))) is not None:
        return known
    try:
        name = parse_model_name(text)
    except ValueError:
        return None
    return name if isinstance(name, HubName) else None
