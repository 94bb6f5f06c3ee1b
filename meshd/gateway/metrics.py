"""The metrics of a gateway's requests. Each is observed once per request, but for the tokens of a stream.

A model's name is the one under which it is served, never what a client wrote; through `meshd client` it is
another node's, so only the first API_MODELS_MEASURED names are told apart.
"""

from collections.abc import Iterator

from meshd.base.metrics import CollectorRegistry, Counter, FewNames, Histogram, Metric
from meshd.base.peer_limits import API_MODELS_MEASURED

OTHER_PATH = "other"
PAGE_PATH = "/"  # all files of the chat page
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_TOKEN_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0)


class GatewayMetrics:
    """The instruments of one gateway. `models` makes a label of a model's name."""

    def __init__(self) -> None:
        self.models = FewNames(API_MODELS_MEASURED.most)
        self._registry = every = CollectorRegistry()
        model = ("model",)
        self.requests = Counter("meshd_requests", "Requests that ended.", ("path", "status"), registry=every)
        self.request_seconds = Histogram(
            "meshd_request_duration_seconds",
            "From a request's arrival to the end of its response.",
            ("path",),
            buckets=_SECONDS,
            registry=every,
        )
        self.queue_seconds = Histogram(
            "meshd_request_queue_seconds",
            "From a request's arrival in the queue to its turn.",
            model,
            buckets=(0.001, *_SECONDS),
            registry=every,
        )
        self.first_token_seconds = Histogram(
            "meshd_time_to_first_token_seconds",
            "From a request's arrival to the first token of a streamed answer.",
            model,
            buckets=_SECONDS,
            registry=every,
        )
        self.token_seconds = Histogram(
            "meshd_time_per_output_token_seconds",
            "Mean time between the tokens of an answer.",
            model,
            buckets=_TOKEN_SECONDS,
            registry=every,
        )
        self.prompt_tokens = Counter(
            "meshd_prompt_tokens", "Tokens of prompts, cached ones included.", model, registry=every
        )
        self.cached_tokens = Counter(
            "meshd_cached_prompt_tokens", "Tokens of prompts that the cache had.", model, registry=every
        )
        self.generated_tokens = Counter(
            "meshd_generated_tokens", "Tokens that were generated.", model, registry=every
        )
        self.prompt_seconds = Counter(
            "meshd_prompt_seconds", "Time in which prompts were computed.", model, registry=every
        )
        self.generated_seconds = Counter(
            "meshd_generated_seconds", "Time in which tokens were generated.", model, registry=every
        )
        self.losses = Counter(
            "meshd_answer_losses",
            "Times that an answer lost its llama-server, worker or head.",
            model,
            registry=every,
        )

    def collect(self) -> Iterator[Metric]:
        """Yield all of them."""
        yield from self._registry.collect()
