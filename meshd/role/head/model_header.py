"""A model of which this node has only the header: which tensors it lacks, and what ends a load for that."""

from collections.abc import Callable

from meshd.base.errors import MeshdError, UserError
from meshd.model.layers import is_of_layer
from meshd.model.weights_index import WeightsIndex


class ModelHeader:
    """For one life of the model. `fails` is told once why it cannot be loaded."""

    def __init__(self, name: str, index: WeightsIndex, fails: Callable[[MeshdError], None]) -> None:
        self._name = name
        self._fails = fails
        self.absent = frozenset(one.digest for one in index.tensors if is_of_layer(one.name))
        """The hashes of all tensors of layers. One that is here as well, with the same bytes, counts too:
        llama-server would read it where the layer has it.
        """

    def is_lacked(self, worker: str, tensor: str | None) -> None:
        """By a worker that needs it: nothing of this file may be sent in its place."""
        what = f"tensor `{tensor}`" if tensor is not None else "weights that are known by no hash"
        self._fails(
            UserError(
                f"worker {worker} lacks {what}, and this node has only the header of `{self._name}`",
                hint="start that worker with `--model`, or let a member give it the model (`--give-models` "
                "there, `--keep-weights` on the worker); without `--header-only` this node takes all of it",
            )
        )
