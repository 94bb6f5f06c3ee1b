"""Declare the short names of models: the file on Hugging Face that each means, and an estimate of its needs.

A row is declared here and nowhere else. All but its name and repository is an estimate, which only
`meshd model ls --fits` reads. Sizes are those of public catalogues of GGUF files, which give bytes and
SHA-256 (of `gemma-4-26b`, rounded ones), read in November 2026; layers, contexts and caches are those of
published configurations, but for those of gpt-oss, glm-4.5-air and qwen3-coder-next and the heads of
gemma-4-31b, which nobody looked up. No file was downloaded for this table. Hugging Face's answer always goes
first: a download checks disk and hash by that, and says so where a size here is wrong (library/download.py);
a model that is on this machine is listed with its real size.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from meshd.model.cache import LayerCache, ModelCache
from meshd.model.gguf_names import GGUF_SUFFIX
from meshd.model.layers import ModelLayers, Widths
from meshd.model.model_name import DEMO, HubName, parse_model_name

_WRONG_SIZE = 0.01  # share of a size; less than that is not worth a word
# Bits for each weight, as files of about four bits have them.
_INPUT_BITS, _OUTPUT_BITS, _LAYER_BITS = 4.5, 6.6, 4.5
_MATRICES = 3  # of equal size, of which most of a mixture's layer consists


@dataclass(frozen=True, slots=True)
class ShortModel:
    """A model with a short name. `hub` None: the demo's, which comes from the Python package index.

    `bytes`: of all its files. `context`: the tokens it was trained for. `width`: of its embeddings.
    `caches`: what each layer keeps. `tied`: the embeddings make the logits, too.
    """

    name: str
    hub: HubName | None
    bytes: int
    context: int
    width: int
    vocabulary: int
    caches: tuple[LayerCache, ...]
    tied: bool = False

    def differs_from(self, size: int) -> bool:
        """Say whether the real size is so different that users should know."""
        return abs(size - self.bytes) > _WRONG_SIZE * self.bytes

    def layers(self, size: int | None = None) -> ModelLayers:
        """Return the estimate for a planner; `size`: of the model's files, if that is known."""
        count, elements = len(self.caches), self.width * self.vocabulary
        embedding, output = (int(elements * bits / 8) for bits in (_INPUT_BITS, _OUTPUT_BITS))
        beside = embedding if not self.tied else 0
        layer = max(1, (size or self.bytes) - beside - output) // count
        return ModelLayers(
            name=self.name,
            architecture="",
            trained_context=self.context,
            layers=(layer,) * count,
            padded_layers=(layer,) * count,
            input=output if self.tied else embedding,
            embedding=output if self.tied else embedding,
            output=output,
            tied=self.tied,
            output_rest=0,
            shared=0,
            largest_elements=max(elements, int(layer * 8 / _LAYER_BITS / _MATRICES)),
            cache=ModelCache(self.caches, exact=False),
            widths=Widths(
                embedding=self.width,
                attention=4 * self.width,
                heads=1,
                feed_forward=4 * self.width,
                experts=0,
                state=max(layer.state for layer in self.caches),
                vocabulary=self.vocabulary,
            ),
        )


def _attends(heads: int, length: int, window: int = 0) -> LayerCache:
    return LayerCache(key=heads * length, value=heads * length, window=window)


def _recurs(value_heads: int, heads: int = 16, size: int = 128, kernel: int = 4) -> LayerCache:
    """Return the state of a gated delta net."""
    inner = value_heads * size
    return LayerCache(state=(kernel - 1) * (inner + 2 * heads * size) + size * inner)


_QWEN3, _QWEN35, _GEMMA, _GPT_OSS = 151_936, 248_320, 262_144, 201_088  # vocabularies


def _row(
    name: str,
    repository: str,
    size: int,
    context: int,
    width: int,
    vocabulary: int,
    caches: tuple[LayerCache, ...],
    *,
    tied: bool = False,
) -> ShortModel:
    hub = parse_model_name(f"hf:{repository}") if repository else None
    assert hub is None or isinstance(hub, HubName)
    return ShortModel(name, hub, size, context, width, vocabulary, caches, tied)


# fmt: off
# name, repository and quantisation, bytes | context, width, vocabulary, layers
SHORT_MODELS = (
    _row(DEMO, "", 98_362_432,
         8192, 576, 49_152, (_attends(3, 64),) * 30, tied=True),
    _row("qwen3-4b", "unsloth/Qwen3-4B-Instruct-2507-GGUF:Q4_K_M", 2_497_281_120,
         262_144, 2560, _QWEN3, (_attends(8, 128),) * 36, tied=True),
    _row("qwen3-8b", "Qwen/Qwen3-8B-GGUF:Q4_K_M", 5_027_783_488,
         40_960, 4096, _QWEN3, (_attends(8, 128),) * 36),
    _row("qwen3.5-9b", "unsloth/Qwen3.5-9B-GGUF:Q4_K_M", 5_680_522_464,
         262_144, 4096, _QWEN35, (*(_recurs(32),) * 3, _attends(4, 256)) * 8),
    _row("gpt-oss-20b", "ggml-org/gpt-oss-20b-GGUF:MXFP4", 12_109_566_624,
         131_072, 2880, _GPT_OSS, (_attends(8, 64, window=128), _attends(8, 64)) * 12),
    _row("qwen3.6-27b", "unsloth/Qwen3.6-27B-GGUF:Q4_K_M", 16_817_244_384,
         262_144, 5120, _QWEN35, (*(_recurs(48),) * 3, _attends(4, 256)) * 16),
    _row("gemma-4-26b", "unsloth/gemma-4-26B-A4B-it-GGUF:UD-Q4_K_M", 16_950_000_000,
         262_144, 2816, _GEMMA, (*(_attends(8, 256, window=1024),) * 5, _attends(2, 512)) * 5, tied=True),
    _row("glm", "unsloth/GLM-4.7-Flash-GGUF:Q4_K_M", 18_312_339_776,
         202_752, 2048, 154_880, (LayerCache(key=576),) * 47),
    _row("gemma-4-31b", "unsloth/gemma-4-31B-it-GGUF:Q4_K_M", 18_323_733_440,
         262_144, 5376, _GEMMA, (*(_attends(16, 256, window=1024),) * 5, _attends(4, 512)) * 10, tied=True),
    _row("qwen3", "unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF:Q4_K_M", 18_556_689_568,
         262_144, 2048, _QWEN3, (_attends(4, 128),) * 48),
    _row("qwen3.6-35b", "unsloth/Qwen3.6-35B-A3B-GGUF:UD-Q4_K_M", 22_134_528_992,
         262_144, 2048, _QWEN35, (*(_recurs(32),) * 3, _attends(2, 256)) * 10),
    _row("llama-3.3-70b", "unsloth/Llama-3.3-70B-Instruct-GGUF:Q4_K_M", 42_520_398_432,
         131_072, 8192, 128_256, (_attends(8, 128),) * 80),
    _row("qwen3-coder-next", "Qwen/Qwen3-Coder-Next-GGUF:Q4_K_M", 48_410_992_032,
         262_144, 2048, _QWEN3, (*(_recurs(32),) * 3, _attends(2, 256)) * 12),
    _row("gpt-oss-120b", "ggml-org/gpt-oss-120b-GGUF:MXFP4", 63_387_346_208,
         131_072, 2880, _GPT_OSS, (_attends(8, 64, window=128), _attends(8, 64)) * 18),
    _row("glm-4.5-air", "unsloth/GLM-4.5-Air-GGUF:Q4_K_M", 72_975_748_384,
         131_072, 4096, 151_552, (*(_attends(8, 128),) * 46, LayerCache())),
)
# fmt: on
SHORT_NAMES: Mapping[str, HubName] = {
    model.name: model.hub for model in SHORT_MODELS if model.hub is not None
}


def short_layers(sizes: Mapping[str, int]) -> list[ModelLayers]:
    """Return the estimates of all models; `sizes` by short name are real ones."""
    return [model.layers(sizes.get(model.name)) for model in SHORT_MODELS]


def short_model(text: str) -> ShortModel | None:
    """Return the row with this short name."""
    low = text.lower().removesuffix(GGUF_SUFFIX)
    return next((model for model in SHORT_MODELS if model.name == low), None)


def short_model_of(name: HubName) -> ShortModel | None:
    """Return the row of this very model, by whatever name it was asked for."""
    return next((model for model in SHORT_MODELS if model.hub == name), None)


def stem_of(name: HubName) -> str:
    """Return the file's name by its authors, without `.gguf`; other stores use it, too."""
    return f"{name.repo.removesuffix('-GGUF')}-{name.choice}"


def hub_name_of(text: str) -> HubName | None:
    """Return the Hugging Face model that a text means, by its full name or a short one, or None."""
    if (known := SHORT_NAMES.get(text.lower().removesuffix(GGUF_SUFFIX))) is not None:
        return known
    try:
        name = parse_model_name(text)
    except ValueError:
        return None
    return name if isinstance(name, HubName) else None


def is_published(text: str) -> bool:
    """Say whether a model may be had without members: Hugging Face has it, or it is the demo's."""
    return hub_name_of(text) is not None or text.lower().removesuffix(GGUF_SUFFIX) == DEMO
