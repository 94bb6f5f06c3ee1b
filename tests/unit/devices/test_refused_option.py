"""Options that llama-server refuses: told with its own words, and nothing else is taken for that."""

import pytest
from meshd.devices.refused_option import refused_option


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("error: invalid argument: --nosuchopt", "invalid argument: --nosuchopt"),
        ("error: unknown value for --flash-attn: 'x'", "unknown value for --flash-attn: 'x'"),
        ('error while handling argument "-np": stoi', 'argument "-np": stoi'),
        ("error loading model: out of memory", ""),
        ("ggml_backend_mesh: error: invalid argument", ""),
        ("llama_model_load: error loading model", ""),
    ],
)
def test_what_llama_server_says_of_its_options(line: str, said: str) -> None:
    expected = f"llama-server refuses its options: {said}" if said else ""
    assert refused_option(("before", f"{line}\n", "", "usage:")) == expected
