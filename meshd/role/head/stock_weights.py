"""The model file of a stock head as its tunnels get it: tensor by tensor, by name."""

import os
from collections.abc import Mapping

from meshd.model.weights_index import TensorEntry, WeightsIndex
from meshd.role.worker.stock_weights import OpenWeights
from meshd.store.interface import WeightsFile


class OpenNamedWeights(OpenWeights):
    """Implements NamedWeights, with descriptors of its own until `close`."""

    def __init__(self, index: WeightsIndex, file: WeightsFile) -> None:
        """Raises OSError."""
        descriptors: list[int] = []
        try:
            for descriptor in file.descriptors:
                descriptors.append(os.dup(descriptor))
        except OSError:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        super().__init__(index, descriptors)
        self.tensors: Mapping[str, TensorEntry] = {tensor.name: tensor for tensor in index.tensors}
