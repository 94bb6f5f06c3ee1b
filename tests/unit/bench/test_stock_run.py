"""What a llama-server without meshd is told, from the command line of meshd's."""

import pytest
from meshd.bench.stock_run import alone, over_rpc

MESHD = ["-fit", "off", "-ngl", "31", "-dev", "MESH0,MESH1", "-ts", "0,15,16", "-lm", "none", "-c", "512"]


def test_over_upstreams_rpc_the_split_is_the_same() -> None:
    given = over_rpc(MESHD, 2)
    assert given[given.index("-dev") + 1] == "RPC0,RPC1"
    assert given[given.index("-ts") + 1] == "0,15,16"
    assert "--rpc" in given


@pytest.mark.parametrize(
    ("devices", "there"), [(("CUDA0", "CUDA1"), "CUDA0"), ((), "CPU")], ids=["on a GPU", "on a processor"]
)
def test_one_node_has_the_ends_where_meshd_has_them(devices: tuple[str, ...], there: str) -> None:
    """Its llama-server knows no device of a worker, and would not start with one."""
    given = alone([*MESHD, "-ot", r"^output\.weight=CPU,^token_embd\.weight=MESH11"], devices)
    assert given[given.index("-ot") + 1] == rf"^output\.weight=CPU,^token_embd\.weight={there}"
    assert given.count("-dev") == given.count("-ngl") == 1
    assert given[given.index("-dev") + 1] == (devices[0] if devices else "none")
    assert not {"-ts", "-lm", "MESH0,MESH1"} & set(given)
    assert given[:2] == ["-fit", "off"]
