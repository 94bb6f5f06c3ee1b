"""Command lines and environment of the children."""

from meshd.role.native import command_lines
from meshd.role.native.command_lines import Descriptors, Head


def test_an_rpc_server_gets_descriptors_and_no_secret() -> None:
    argv = command_lines.rpc_server(
        "rpc", devices=["CPU", "CUDA0"], threads=3, memory=[1, 2], descriptors=Descriptors(5, 6, 7, 8, 9)
    )
    assert " ".join(argv) == (
        "rpc --threads 3 --listen-fd 5 --auth-fd 6 --device CPU,CUDA0 --memory 1,2 --weights-fd 7 "
        "--peers-fd 9 --report-fd 8"
    )
    fewest = Descriptors(5, 6, -1, 8, 9)
    bare = command_lines.rpc_server("rpc", devices=["CPU"], threads=None, memory=[1], descriptors=fewest)
    assert "--weights-fd" not in bare
    assert "--threads" not in bare
    assert fewest.all == (5, 6, -1, 8, 9)


HEAD = Head("m.gguf", "l.sock", "m", ("a:1", "b:2"), ("-c", "8192"), "none", ("--ctx-size", "4096"))


def test_a_head_gets_the_plan_and_the_users_words_last() -> None:
    argv = command_lines.llama_server("llama", HEAD)
    assert argv[-2:] == ["--ctx-size", "4096"]
    text = " ".join(argv)
    for part in ("-m m.gguf", "--host l.sock", "--alias m", "--rpc a:1,b:2", "-c 8192", "-lm none", "-nr"):
        assert part in text
    assert "--cache-ram 0" in text
    assert "--no-warmup" in argv
    assert argv.index("-nr") < argv.index("--ctx-size")


def test_alone_there_is_no_rpc() -> None:
    alone = Head("m", "s", "a", (), (), "none", ())
    argv = command_lines.llama_server("llama", alone)
    assert "--rpc" not in argv
    assert "--no-warmup" in argv  # the first token, which is asked for, is the warm-up


def test_the_users_override_replaces_the_plans() -> None:
    plan = ("-c", "1", "-ot", "token_embd.weight=CPU", "-ngl", "99")
    assert command_lines.without_overridden(plan, ("-np", "2")) == plan
    for option in ("-ot", "--override-tensor"):
        assert command_lines.without_overridden(plan, (option, "x=CPU")) == ("-c", "1", "-ngl", "99")
    assert command_lines.without_overridden(("-c", "1"), ("-ot", "x=CPU")) == ("-c", "1")


def test_descriptors_of_a_head_go_by_environment() -> None:
    assert command_lines.head_environment(
        weights=3, secrets=-1, peers=4, report=5, sockets="/run/a b"
    ) == command_lines.CALM_THREADS | command_lines.LARGE_PAGES | {
        "GGML_RPC_ACTIVATIONS": "f32",
        "GGML_RPC_SOCKETS": "/run/a b",
        "GGML_RPC_WEIGHTS_FD": "3",
        "GGML_RPC_PEERS_FD": "4",
        "GGML_RPC_REPORT_FD": "5",
    }
    halved = command_lines.head_environment(
        weights=-1, secrets=-1, peers=-1, report=5, sockets="/run", activations="f16"
    )
    assert halved["GGML_RPC_ACTIVATIONS"] == "f16"
    assert command_lines.secrets_text({"127.0.0.1:1": b"\x01\xff", "127.0.0.1:2": b"\0"}) == (
        b"127.0.0.1:1 01ff\n127.0.0.1:2 00\n"
    )
    assert command_lines.secrets_text({}) == b""
    assert command_lines.peers_text([("a:1", "b:2", 1), ("b:2", "c:3", 2)]) == b"a:1 b:2 1\nb:2 c:3 2\n"


def test_programs_of_the_mesh_protocol_look_out_where_there_are_processors_to_spare() -> None:
    assert command_lines.mesh_server_environment(looks_out=False) == command_lines.CALM_THREADS
    looking = command_lines.mesh_server_environment(looks_out=True)
    assert looking == command_lines.CALM_THREADS | {"GGML_MESH_LOOKOUT": "10"}
    for looks_out in (False, True):
        environment = command_lines.mesh_head_environment(
            module="/m.so", sockets=[3, 4], lent=[[7, 8], [9]], weights=5, report=6, looks_out=looks_out
        )
        assert ("GGML_MESH_LOOKOUT" in environment) == looks_out
        assert environment["GGML_MESH_FDS"] == "3,4"
        assert environment["GGML_MESH_DEVICES"] == "2,1"
        assert environment["GGML_MESH_MEMORY"] == "7,8,9"


def test_an_rpc_server_is_told_of_neighbours() -> None:
    assert (
        command_lines.neighbour_reached(3, "127.0.0.1:7", bytes(31) + b"\xfe")
        == f"peer 3 127.0.0.1:7 {'00' * 31}fe"
    )
    assert command_lines.neighbour_unreachable(3) == "no 3"
