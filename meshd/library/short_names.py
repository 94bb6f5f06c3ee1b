"""Short names of a few models, for `--model glm`: which file of which repository each is. Pure."""

from collections.abc import Mapping

from meshd.model.model_name import HubName

DEMO = "smollm2"  # the model of `meshd demo`, which comes from the Python package index
DEMO_STEM = "SmolLM2-135M-Instruct.Q4_1"
SHORT_NAMES: Mapping[str, HubName] = {
    "glm": HubName("unsloth", "GLM-4.7-Flash-GGUF", "Q4_K_M"),
    "qwen3": HubName("unsloth", "Qwen3-Coder-30B-A3B-Instruct-GGUF", "Q4_K_M"),
}


def stem_of(name: HubName) -> str:
    """The name of its file, without `.gguf`, as its authors call it: by it other stores have it, too."""
    return f"{name.repo.removesuffix('-GGUF')}-{name.choice}"
