"""Compute the bytes that each layer needs for its context: KV cache, window, or recurrent state.

Follows `llama_kv_cache`, `llama_kv_cache_iswa`, `llama_memory_recurrent` and `llama_hparams` of the pinned
commit: the cells are padded to 256, a windowed layer holds window + one batch, MLA keeps K only, a state is
kept in f32 once per sequence. For unknown architectures the result is an upper bound, and says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from meshd.model import architectures
from meshd.model.ggml import TENSOR_TYPE_NAMES
from meshd.model.gguf import Header

CELL_PADDING = 256  # llama-context.cpp: n_ctx = GGML_PAD(n_ctx, 256)
_STATE_BYTES = 4  # GGML_TYPE_F32 in create_memory
_MOST_IN_A_FIELD = 1 << 32  # limit for any header field; keeps hostile numbers out of the sums


@dataclass(frozen=True, slots=True)
class ContextShape:
    """The options of llama-server that decide how large caches are, counted in tokens and sequences.

    `tokens`: the whole context. `unified`: the sequences share its cells; otherwise it is divided among them.
    """

    tokens: int
    parallel: int = 1
    unified: bool = False
    batch: int = 2048
    micro_batch: int = 512
    key_type: str = "f16"
    value_type: str = "f16"
    full_windows: bool = False
    flash_attention: bool = True
    drafted: int = 0  # tokens that each answer may draft in one round, at most

    @property
    def most_drafted(self) -> int:
        """The tokens that an answer may draft so that a batch has room for the drafts of all answers."""
        return max(0, min(self.drafted, self.batch // self.parallel - 1))

    @property
    def outputs(self) -> int:
        """The maximum number of tokens of one step for which logits are made."""
        return min(self.batch, self.parallel * (1 + self.drafted))

    @property
    def cells(self) -> int:
        """The cells of one stream: the tokens of an answer with its prompt, at most."""
        padded = _pad(self.tokens)
        return padded if self.unified else max(CELL_PADDING, _pad(padded // self.parallel))

    @property
    def streams(self) -> int:
        return 1 if self.unified else self.parallel

    @property
    def is_shared(self) -> bool:
        """True if several answers share the context, so one answer can take cells from the others."""
        return self.parallel > 1 and self.unified

    @property
    def text(self) -> str:
        """The context for people."""
        apart = self.parallel > 1 and not self.is_shared
        return f"{self.parallel} x {self.cells} tokens" if apart else f"{self.tokens} tokens"

    def of(self, parallel: int, tokens: int) -> "ContextShape":
        """Return the shape for `parallel` answers of `tokens` tokens each (together if they share them).

        A single answer gets as many tokens as beside others: llama.cpp pads what it has.
        """
        if parallel == 1 or self.is_shared:
            return replace(self, tokens=tokens, parallel=parallel, unified=parallel > 1)
        return replace(self, tokens=parallel * _pad(tokens), parallel=parallel)

    @property
    def step_tokens(self) -> int:
        """The maximum number of tokens computed at once (n_ubatch)."""
        return min(self.tokens, self.batch, self.micro_batch)

    def window_cells(self, window: int) -> int:
        """Return the cells of one stream of a layer that looks back only `window` tokens."""
        if self.full_windows:
            return self.cells
        wanted = window * (self.parallel if self.unified else 1) + self.step_tokens
        return _pad(min(self.cells, wanted))


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The memory of one layer.

    `key`, `value`, `index`: elements per token; `state`: elements per sequence.
    """

    key: int = 0
    value: int = 0
    index: int = 0
    state: int = 0
    window: int = 0  # tokens; 0: the whole context

    def bytes(self, shape: ContextShape) -> int:
        cells = shape.window_cells(self.window) if self.window else shape.cells
        rows = (
            _row(shape.key_type, self.key)
            + _row(shape.value_type, self.value)
            + _row(shape.key_type, self.index)
        )
        return cells * shape.streams * rows + self.state * _STATE_BYTES * max(1, shape.parallel)


@dataclass(frozen=True, slots=True)
class ModelCache:
    """The caches of all layers. `exact` is False for an unknown architecture: then they are upper bounds."""

    layers: tuple[LayerCache, ...]
    exact: bool

    def layer_bytes(self, shape: ContextShape) -> tuple[int, ...]:
        layers: Sequence[LayerCache] = self.layers
        if not shape.flash_attention:
            # llama.cpp then stores V transposed and padded to the widest layer (TAG_V_CACHE_VARIABLE).
            widest = max((layer.value for layer in layers), default=0)
            layers = [
                LayerCache(layer.key, widest if layer.value else 0, layer.index, layer.state, layer.window)
                for layer in layers
            ]
        sizes = {layer: layer.bytes(shape) for layer in dict.fromkeys(layers)}  # most layers are alike
        return tuple(sizes[layer] for layer in layers)


def _pad(tokens: int) -> int:
    return -(-tokens // CELL_PADDING) * CELL_PADDING


def _row(kind: str, elements: int) -> int:
    layout = TENSOR_TYPE_NAMES[kind]
    return -(-elements // layout.block_elements) * layout.block_bytes


class Hyperparameters:
    """Typed look-ups of `<architecture>.<key>`, clamped to what a real model can have."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.architecture = header.text("general.architecture")

    def number(self, key: str, default: int = 0) -> int:
        value = self.header.integer(f"{self.architecture}.{key}", default)
        return min(max(value, 0), _MOST_IN_A_FIELD)

    def has(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self.header.metadata

    def array(self, key: str) -> tuple[int, ...] | None:
        return self.header.array(f"{self.architecture}.{key}")

    def per_layer(self, key: str, layers: int, default: Sequence[int]) -> list[int]:
        """Return one number per layer, from a single number or an array; `default` if the key is absent."""
        values = self.array(key)
        if values is not None:
            padded = [min(max(value, 0), _MOST_IN_A_FIELD) for value in values[:layers]]
            return padded + [0] * (layers - len(padded))
        return [self.number(key)] * layers if self.has(key) else list(default)


def model_cache(header: Header, layers: int) -> ModelCache:
    """Return the caches of the `layers` blocks of a model."""
    caches = _Caches(Hyperparameters(header), layers)
    of_layer = caches.rule()
    if of_layer is None:
        return ModelCache((caches.upper_bound(),) * layers, exact=False)
    return ModelCache(tuple(map(of_layer, range(layers))), exact=True)


class _Caches:
    """The head counts and sizes of one model, and what each of its layers keeps by its architecture."""

    def __init__(self, known: Hyperparameters, layers: int) -> None:
        self._known = known
        self._layers = layers
        # Prediction layers at the end are not attended: they have no cache.
        self._trunk = max(0, layers - known.number("nextn_predict_layers"))
        self.heads = known.per_layer("attention.head_count", layers, [0] * layers)
        self.kv_heads = known.per_layer("attention.head_count_kv", layers, self.heads)
        per_head = known.number("embedding_length") // self.heads[0] if layers and self.heads[0] else 0
        self._key = known.number("attention.key_length", per_head)
        self._value = known.number("attention.value_length", per_head)
        self._key_window = known.number("attention.key_length_swa", self._key)
        self._value_window = known.number("attention.value_length_swa", self._value)
        self._mla = bool(
            known.number("attention.key_length_mla") and known.number("attention.value_length_mla")
        )

    def rule(self) -> Callable[[int], LayerCache] | None:
        """Return what tells the cache of each layer; None if nothing is known about the architecture."""
        name = self._known.architecture
        if name in architectures.NO_CACHE:
            return lambda _: LayerCache()
        if name in architectures.PLAIN:
            return lambda layer: self._attended(layer) if layer < self._trunk else LayerCache()
        if name in architectures.WINDOWED:
            return self._windowed(architectures.WINDOWED[name])
        if name in architectures.RECURRENT:
            return lambda _: LayerCache(state=self._state)
        if name in architectures.HYBRID_BY_HEADS:
            return self._hybrid_by_heads()
        if name in architectures.HYBRID_BY_INTERVAL:
            return self._hybrid_by_interval()
        if name in architectures.HYBRID_BOTH:
            return lambda layer: replace(self._attended(layer), state=self._state)
        return None

    @cached_property
    def _state(self) -> int:
        """The elements of one recurrent layer's state: n_embd_r + n_embd_s of llama-hparams.cpp."""
        known = self._known
        width = known.number("embedding_length")
        wkv = known.number("wkv.head_size")
        if wkv:
            return known.number("token_shift_count", 2) * width + width * wkv
        convolution = known.number("ssm.conv_kernel")
        groups = known.number("ssm.group_count")
        if known.architecture in architectures.NO_STATE_GROUPS:
            groups = 0
        inner, size = known.number("ssm.inner_size"), known.number("ssm.state_size")
        short = known.number("shortconv.l_cache")
        if short:
            return width * (short - 1) + size * inner
        kda = known.number("kda.head_dim")
        if kda:
            heads = self.heads[0] if self.heads else 0
            return 3 * (convolution - 1 if convolution else 3) * heads * kda + kda * kda * heads
        return max(0, convolution - 1) * (inner + 2 * groups * size) + size * inner

    def _attended(self, layer: int, window: int = 0) -> LayerCache:
        key = self._key_window if window else self._key
        value = self._value_window if window else self._value
        heads = self.kv_heads[layer]
        return LayerCache(key=key * heads, value=0 if self._mla else value * heads, window=window)

    def _windowed(self, rule: architectures.AttentionWindow) -> Callable[[int], LayerCache] | None:
        windows = self._windows(rule)
        if windows is None:
            return None
        name = self._known.architecture
        first_shared = architectures.FIRST_SHARED_LAYER.get(name, self._layers)
        if name == "gemma4":
            first_shared = self._layers - self._known.number("attention.shared_kv_layers")
        kept = min(self._trunk, first_shared)
        return lambda layer: self._attended(layer, windows[layer]) if layer < kept else LayerCache()

    def _windows(self, rule: architectures.AttentionWindow) -> list[int] | None:
        """Return the window of each layer in tokens, 0 for full ones; None if the file does not say."""
        # Some architectures have no windows at all.
        known = self._known
        key = "attention.sliding_window"
        tokens = known.number(key, rule.tokens)
        none = (rule.optional and tokens == 0) or (rule.optional and not known.has(key))
        if known.architecture == "llama4":
            none = known.has(key) and tokens == 0
        if known.architecture == "exaone4":
            none = self._trunk != 64
        if none:
            return [0] * self._layers
        # The layers that have one.
        tokens = rule.tokens if rule.fixed else tokens
        listed = known.array("attention.sliding_window_pattern")
        if listed is not None:
            flags = [*map(bool, listed[: self._layers]), *[False] * (self._layers - len(listed))]
        else:
            pattern = known.number("attention.sliding_window_pattern", rule.pattern)
            if not pattern and not rule.pattern:
                return None
            flags = [
                layer < self._trunk and _is_windowed(layer, pattern, rule) for layer in range(self._layers)
            ]
        if tokens == 0 and any(flags):
            return None
        return [tokens if flag else 0 for flag in flags]

    def _hybrid_by_heads(self) -> Callable[[int], LayerCache]:
        known = self._known
        feed_forward = known.per_layer("feed_forward_length", self._layers, [0] * self._layers)
        separate = known.architecture.startswith("nemotron_h")  # feed-forward blocks are separate layers
        window = known.number("attention.sliding_window") if known.architecture == "lfm2" else 0

        def of_layer(layer: int) -> LayerCache:
            if separate and feed_forward[layer]:
                return LayerCache()
            if self.kv_heads[layer]:
                return self._attended(layer, window)
            return LayerCache(state=self._state if layer < self._trunk else 0)

        return of_layer

    def _hybrid_by_interval(self) -> Callable[[int], LayerCache]:
        listed = self._known.array("attention.recurrent_layers")
        interval = max(1, self._known.number("full_attention_interval", 4))

        def of_layer(layer: int) -> LayerCache:
            recurrent = (layer + 1) % interval != 0
            if listed is not None:
                recurrent = layer < len(listed) and bool(listed[layer])
            if layer >= self._trunk:
                return LayerCache()
            return LayerCache(state=self._state) if recurrent else self._attended(layer)

        return of_layer

    def upper_bound(self) -> LayerCache:
        """Return K and V of the widest kind, an indexer and a state, for the whole context."""
        known = self._known
        key = max(self._key, self._key_window)
        value = max(self._value, self._value_window)
        index = max(known.number("attention.indexer.key_length"), 0)
        most_heads = max([*self.kv_heads, *([] if any(self.kv_heads) else self.heads)], default=0)
        return LayerCache(key * most_heads, value * most_heads, index, self._state)


def _is_windowed(layer: int, pattern: int, rule: architectures.AttentionWindow) -> bool:
    """Say whether a layer is windowed, as `llama_hparams::set_swa_pattern` does."""
    if pattern == 0:
        return True
    return layer % pattern != 0 if rule.first_full else layer % pattern < pattern - 1
