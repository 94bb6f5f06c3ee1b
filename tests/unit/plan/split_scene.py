"""A model and devices to be split over: what tests of the plan begin with."""

from meshd.model.cache import LayerCache, ModelCache
from meshd.model.layers import ModelLayers, Widths
from meshd.plan.split import Device

GIB = 1 << 30


def split_model(
    *, layers: int = 30, layer_bytes: int = 2_216_448, tied: bool = True, exact: bool = True
) -> ModelLayers:
    """SmolLM2's numbers, unless told otherwise."""
    return ModelLayers(
        name="SmolLM2.gguf",
        architecture="llama",
        trained_context=8192,
        layers=(layer_bytes,) * layers,
        padded_layers=(layer_bytes + 100,) * layers,
        input=30_081_024,
        embedding=30_081_024,
        output=30_081_024,
        tied=tied,
        output_rest=2304,
        shared=0,
        largest_elements=576 * 49152,
        cache=ModelCache((LayerCache(key=192, value=192),) * layers, exact=exact),
        widths=Widths(576, 1536, 9, 1536, 0, 0, 49152),
    )


def cpu(node: str, free: float = 4.0, *, head: bool = False, pool: str = "") -> Device:
    """`free`: GiB."""
    return Device(node, "CPU", int(free * GIB), is_head=head, pool=pool)


HEAD = cpu("head", head=True)
