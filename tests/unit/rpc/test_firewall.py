"""The firewall: an honest talk passes unchanged, each broken request is refused with its reason."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.rpc import protocol as rpc
from meshd.rpc.firewall import MAX_BUFFERS, Firewall
from meshd.rpc.frames import MAX_UNANSWERED

from tests.unit.rpc import talk
from tests.unit.rpc.talk import BASE, HANDLE, ROOM, Talk, Tensor

END = BASE + ROOM
VIEW_AT_END = Tensor(data=END - 16)
HONEST: tuple[bytes, ...] = (
    talk.request(rpc.GET_ALIGNMENT, bytes(4)),
    talk.request(rpc.GET_MAX_SIZE, bytes(4)),
    talk.request(rpc.GET_DEVICE_MEMORY, bytes(4)),
    talk.request(rpc.DEVICE_COUNT),
    talk.on_buffer(rpc.BUFFER_CLEAR),
    talk.set_tensor(Tensor()),
    talk.set_tensor(Tensor(), b"", offset=16),
    talk.set_tensor(VIEW_AT_END, bytes(4), offset=12),
    talk.set_tensor(Tensor(kind=talk.Q4_0, ne=(64, 2, 1, 1), nb=(18, 36, 72, 72)), bytes(72)),
    talk.set_hash(Tensor()),
    talk.get_tensor(Tensor()),
    talk.get_tensor(VIEW_AT_END, offset=8, size=8),
    talk.memset(Tensor()),
    talk.copy(Tensor(), Tensor(data=BASE + 64)),
    talk.init(Tensor()),
    talk.alloc_size(Tensor(), [Tensor(), Tensor(buffer=0, data=0)]),
    talk.load(talk.load_entry(), talk.load_entry(kind=talk.Q4_0, ne=(32, 4, 1, 1), size=72)),
    talk.load(),
    talk.ask_ops(talk.asked_op(talk.ADD, 0b11), talk.asked_op(talk.MUL_MAT, 0b1000000011), tensors=7),
    talk.ask_ops(tensors=0),
    talk.GRAPH,
    talk.on_buffer(rpc.FREE_BUFFER),
)


@pytest.mark.parametrize("message", HONEST, ids=lambda message: rpc.COMMANDS[message[0]].name)
def test_an_honest_request_goes_on_as_it_is(message: bytes) -> None:
    firewall = Talk().firewall
    assert firewall.from_peer(message) is message


@given(st.lists(st.integers(0, 20_000), max_size=12))
def test_any_split_of_the_talk_goes_on_whole(cuts: list[int]) -> None:
    it, data = Talk(), b"".join(HONEST)
    edges = [0, *sorted(cut % len(data) for cut in cuts), len(data)]
    passed = b"".join(it.say(data[begin:end]) for begin, end in pairwise(edges))
    assert passed == data
    assert it.firewall.held_bytes == 0


HOSTILE: tuple[tuple[str, bytes], ...] = (
    ("command 18", talk.request(18)),  # RPC_CMD_NONE
    ("command 19", talk.request(19)),
    ("command 255", talk.request(255)),
    ("HELLO: sent twice", talk.hello()),
    ("GET_ALIGNMENT of 5 bytes", talk.request(rpc.GET_ALIGNMENT, bytes(5))),
    ("DEVICE_COUNT of 1 bytes", talk.request(rpc.DEVICE_COUNT, b"x")),
    ("SET_TENSOR of 304 bytes", rpc.REQUEST.pack(rpc.SET_TENSOR, 304)),
    ("SET_TENSOR of 18446744073709551615 bytes", rpc.REQUEST.pack(rpc.SET_TENSOR, (1 << 64) - 1)),
    ("GRAPH_COMPUTE of 1099511627776 bytes", rpc.REQUEST.pack(rpc.GRAPH_COMPUTE, 1 << 40)),
    ("SET_TENSOR_GGUF of 573449 bytes", rpc.REQUEST.pack(rpc.SET_TENSOR_GGUF, 8 + 4096 * 140 + 1)),
    ("SUPPORTED_OPS of 15 bytes", talk.request(rpc.SUPPORTED_OPS, bytes(15))),
    (
        "SUPPORTED_OPS of 1916945 bytes",
        rpc.REQUEST.pack(rpc.SUPPORTED_OPS, 16 + 4096 * (72 + 11 * 36) + 1),
    ),
    ("2 operations and 2 tensors in", talk.ask_ops(talk.asked_op(talk.ADD, 1), tensors=2, count=2)),
    ("1 operations and 3 tensors in", talk.ask_ops(talk.asked_op(talk.ADD, 1), tensors=2, total=3)),
    ("3 tensors for operations that have 2", talk.ask_ops(talk.asked_op(talk.ADD, 1), tensors=3)),
    ("1 tensors for operations that have 2", talk.ask_ops(talk.asked_op(talk.ADD, 1), tensors=1)),
    ("with sources 400", talk.ask_ops(talk.asked_op(talk.ADD, 1 << 10), tensors=2)),
    ("4097 operations and 0 tensors", talk.ask_ops(*[talk.asked_op(0, 0)] * 4097, tensors=0)),
    ("ALLOC_BUFFER: ", talk.alloc((1 << 64) - 1)),
    ("FREE_BUFFER: a buffer that", talk.on_buffer(rpc.FREE_BUFFER, 0xDEAD)),
    ("BUFFER_CLEAR: a buffer that", talk.on_buffer(rpc.BUFFER_CLEAR, 0)),
    ("BUFFER_GET_BASE: a buffer that", talk.on_buffer(rpc.BUFFER_GET_BASE, 1)),
    ("beyond the end of the tensor", talk.set_tensor(Tensor(), bytes(17))),
    ("beyond the end of the tensor", talk.set_tensor(Tensor(), bytes(1), offset=(1 << 64) - 1)),
    ("beyond the end of the tensor", talk.get_tensor(Tensor(), size=17)),
    ("beyond the end of the tensor", talk.get_tensor(Tensor(), offset=(1 << 64) - 8)),
    ("beyond the end of the tensor", talk.memset(Tensor(), size=1 << 40)),
    ("beyond the end of the tensor", talk.set_hash(Tensor(), offset=17)),
    ("tensors of two sizes", talk.copy(Tensor(), Tensor(ne=(2, 1, 1, 1)))),
    ("COPY_TENSOR: a tensor outside", talk.copy(Tensor(), Tensor(data=END - 8))),
    ("INIT_TENSOR: a tensor without a buffer", talk.init(Tensor(buffer=0, data=0))),
    ("GET_ALLOC_SIZE: a tensor of the unknown type", talk.alloc_size(Tensor(kind=43))),
    ("GET_ALLOC_SIZE: a buffer that", talk.alloc_size(Tensor(), [Tensor(buffer=5)])),
    ("2 tensors in 148 bytes", talk.load(talk.load_entry(), count=2)),
    ("of another size than its shape", talk.load(talk.load_entry(size=20))),
    ("of another size than its shape", talk.load(talk.load_entry(size=0, ne=(0, 1, 1, 1)))),
    ("unknown type 4", talk.load(talk.load_entry(kind=4))),
    ("a tensor outside its buffer", talk.load(talk.load_entry(data=END - 8))),
    ("a tensor outside its buffer", talk.load(talk.load_entry(data=BASE - 1))),
    ("a buffer that", talk.load(talk.load_entry(buffer=0))),
    ("there is no graph", talk.recompute()),
)


@pytest.mark.parametrize(("why", "message"), HOSTILE)
def test_a_broken_request_is_refused(why: str, message: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        Talk().say(message)


BAD_PLACES: tuple[tuple[str, Tensor], ...] = (
    ("a buffer that this connection", Tensor(buffer=0xDEAD)),
    ("an address without a buffer", Tensor(buffer=0)),
    ("outside", Tensor(data=BASE - 1)),
    ("outside", Tensor(data=END - 15)),
    ("outside", Tensor(data=END)),
    ("outside", Tensor(data=(1 << 64) - 8)),
    ("outside", Tensor(nb=(0xFFFFFFFF, 16, 16, 16))),
    ("outside", Tensor(ne=(4, 2, 1, 1), nb=(4, 0xFFFFFFF0, 16, 16))),
    (
        "outside",
        Tensor(ne=(4, 4, 4, 0xFFFFFFFF), nb=(4, 0, 0, 0)),
    ),  # as many elements as a kernel never counts
    ("outside", Tensor(ne=(0xFFFFFFFF,) * 4, nb=(0xFFFFFFFF,) * 4)),
    ("impossible shape", Tensor(ne=(0, 0xFFFFFFFF, 0xFFFFFFFF, 1))),
    ("unknown type 4", Tensor(kind=4)),
    ("unknown type 31", Tensor(kind=31)),
    ("unknown type 43", Tensor(kind=43)),
    ("unknown type 4294967295", Tensor(kind=0xFFFFFFFF)),
    ("not whole blocks", Tensor(kind=talk.Q4_0, ne=(33, 1, 1, 1), nb=(18, 18, 18, 18))),
    ("not whole blocks", Tensor(kind=talk.Q4_0, ne=(64, 1, 1, 1), nb=(0, 36, 36, 36))),
)


@pytest.mark.parametrize(("why", "tensor"), BAD_PLACES)
def test_no_command_takes_a_tensor_that_is_not_where_it_says(why: str, tensor: Tensor) -> None:
    empty = Tensor(id=9, ne=(0, 1, 1, 1))
    for message in (
        talk.set_tensor(tensor, b""),
        talk.get_tensor(tensor, size=0),
        talk.memset(tensor, size=0),
        talk.set_hash(tensor),
        talk.copy(tensor, empty),
        talk.copy(empty, tensor),
        talk.init(tensor),
        talk.alloc_size(tensor),
        talk.alloc_size(empty, [tensor]),
        talk.graph((tensor,), (1,)),
    ):
        it = Talk()
        with pytest.raises(RemoteProtocolError, match=why if tensor.buffer else "without a buffer"):
            it.say(message)


def test_nothing_comes_before_hello() -> None:
    with pytest.raises(RemoteProtocolError, match="DEVICE_COUNT before HELLO"):
        Firewall().from_peer(talk.request(rpc.DEVICE_COUNT))


@pytest.mark.parametrize("caps", [b"\1" + bytes(23), bytes(19) + b"\1" + bytes(4)])
def test_no_other_transport_is_agreed(caps: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="another transport"):
        Firewall().from_peer(talk.hello(caps))


@pytest.mark.parametrize(("client", "server"), [(talk.CAPS, bytes(24)), (bytes(24), talk.CAPS)])
def test_an_extension_takes_both(client: bytes, server: bytes) -> None:
    firewall = Firewall()
    firewall.from_peer(talk.hello(client))
    firewall.to_peer(talk.hello_answer(server))
    with pytest.raises(RemoteProtocolError, match="command 64"):
        firewall.from_peer(talk.load())


def test_an_extension_waits_for_the_answer() -> None:
    firewall = Firewall()
    with pytest.raises(RemoteProtocolError, match="command 64"):
        firewall.from_peer(talk.hello() + talk.load())


@pytest.mark.parametrize("command", [99, 200, 255])
def test_an_extension_that_nobody_here_knows_is_refused_even_when_both_agreed(command: int) -> None:
    caps = talk.caps(0xFFFF)
    firewall = Firewall()
    firewall.from_peer(talk.hello(caps))
    firewall.to_peer(talk.hello_answer(caps))
    with pytest.raises(RemoteProtocolError, match=f"command {command}"):
        firewall.from_peer(talk.request(command))


# The table of devices behind HELLO, and handles of the client's choice.


def with_all_features() -> Firewall:
    firewall = Firewall()
    firewall.from_peer(talk.hello(talk.caps(7)))
    firewall.to_peer(talk.hello_answer(talk.caps(7)))
    return firewall


@pytest.mark.parametrize("devices", [0, 1, 256])
def test_the_table_of_devices_comes_behind_hello(devices: int) -> None:
    firewall, table = with_all_features(), talk.answer(bytes(40 * devices))
    firewall.from_peer(talk.request(rpc.DEVICE_COUNT))
    assert firewall.to_peer(table) is table
    with pytest.raises(RemoteProtocolError, match="DEVICE_COUNT: an answer of 40 bytes"):
        firewall.to_peer(talk.answer(bytes(40)))


@pytest.mark.parametrize("size", [39, 41, 257 * 40])
def test_the_table_of_devices_is_whole(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match="HELLO: an answer of"):
        with_all_features().to_peer(talk.answer(bytes(size)))


def asking() -> Firewall:
    """Both tables come, and operations may be asked about."""
    firewall, caps = Firewall(), talk.caps(rpc.FEATURE_INFO | rpc.FEATURE_OPS)
    firewall.from_peer(talk.hello(caps))
    firewall.to_peer(talk.hello_answer(caps))
    return firewall


QUESTION = talk.ask_ops(talk.asked_op(talk.ADD, 0b11), talk.asked_op(talk.MUL_MAT, 0b11), tensors=6)


@pytest.mark.parametrize("rows", [0, 11, 256 * 101])
def test_what_devices_can_do_with_weights_comes_behind_their_table(rows: int) -> None:
    firewall, table = asking(), talk.answer(bytes(24 * rows))
    firewall.from_peer(QUESTION)
    firewall.to_peer(talk.answer(bytes(40)))
    assert firewall.to_peer(table) is table
    firewall.to_peer(talk.answer(b"\1\0"))


@pytest.mark.parametrize("size", [23, 25, 24 * (256 * 101 + 1)])
def test_the_table_of_weights_is_whole(size: int) -> None:
    firewall = asking()
    firewall.to_peer(talk.answer(bytes(40)))
    with pytest.raises(RemoteProtocolError, match="HELLO: an answer of"):
        firewall.to_peer(talk.answer(bytes(size)))


@pytest.mark.parametrize("size", [0, 1, 3])
def test_each_operation_is_answered(size: int) -> None:
    firewall = asking()
    firewall.to_peer(talk.answer(bytes(40)) + talk.answer(b""))
    firewall.from_peer(QUESTION)
    with pytest.raises(RemoteProtocolError, match="SUPPORTED_OPS: an answer of"):
        firewall.to_peer(talk.answer(bytes(size)))


def test_nobody_is_asked_who_did_not_say_so() -> None:
    with pytest.raises(RemoteProtocolError, match="command 72"):
        with_all_features().from_peer(QUESTION)


def test_a_handle_of_the_clients_choice_is_good_at_once_and_until_it_is_refused() -> None:
    firewall, handle = with_all_features(), 5 << 44
    tensor = Tensor(buffer=handle, data=handle)
    firewall.from_peer(talk.alloc_as(handle) + talk.set_tensor(tensor))
    with pytest.raises(RemoteProtocolError, match="outside"):
        firewall.from_peer(talk.set_tensor(Tensor(buffer=handle, data=handle + ROOM)))
    firewall = with_all_features()
    firewall.from_peer(talk.alloc_as(handle) + talk.set_tensor(tensor))
    firewall.to_peer(talk.answer(b"") + talk.answer(bytes(8)))
    with pytest.raises(RemoteProtocolError, match="does not have"):
        firewall.from_peer(talk.set_tensor(tensor))


def test_a_handle_that_was_granted_stays() -> None:
    firewall, handle = with_all_features(), 5 << 44
    firewall.from_peer(talk.alloc_as(handle))
    firewall.to_peer(talk.answer(b"") + talk.answer(struct.pack("<Q", ROOM)))
    firewall.from_peer(talk.set_tensor(Tensor(buffer=handle, data=handle)))


@pytest.mark.parametrize("handle", [0, 1, (5 << 44) + 1, 1 << 62, (1 << 64) - 1, 7 << 44])
def test_a_handle_that_is_not_free_is_refused(handle: int) -> None:
    firewall = with_all_features()
    firewall.from_peer(talk.alloc_as(7 << 44))
    with pytest.raises(RemoteProtocolError, match="a handle that is not free"):
        firewall.from_peer(talk.alloc_as(handle))


# Buffers.


def test_a_buffer_that_was_freed_is_gone_with_the_graphs() -> None:
    for after in (talk.set_tensor(Tensor()), talk.recompute(), talk.on_buffer(rpc.FREE_BUFFER)):
        it = Talk()
        it.say(talk.set_tensor(Tensor()))  # known, and forgotten
        it.say(talk.GRAPH)
        it.say(talk.on_buffer(rpc.FREE_BUFFER))
        with pytest.raises(RemoteProtocolError):
            it.say(after)


def test_a_buffer_of_another_connection_is_none_of_ours() -> None:
    firewall = Firewall()
    firewall.from_peer(talk.hello())
    firewall.to_peer(talk.hello_answer())
    with pytest.raises(RemoteProtocolError, match="does not have"):
        firewall.from_peer(talk.set_tensor(Tensor()))


def test_a_buffer_without_a_known_address_is_not_used() -> None:
    it = Talk()
    it.say(talk.alloc())
    it.hear(talk.answer(struct.pack("<QQ", HANDLE + 1, ROOM)))
    with pytest.raises(RemoteProtocolError, match="address was not asked for"):
        it.say(talk.set_tensor(Tensor(buffer=HANDLE + 1, data=0)))


def test_what_could_not_be_allocated_is_no_buffer() -> None:
    it = Talk()
    it.say(talk.alloc())
    it.hear(talk.answer(bytes(16)))
    with pytest.raises(RemoteProtocolError, match="does not have"):
        it.say(talk.on_buffer(rpc.BUFFER_GET_BASE, 0))


def test_an_address_that_comes_after_the_buffer_was_freed_is_passed_on() -> None:
    it = Talk()
    it.say(talk.on_buffer(rpc.BUFFER_GET_BASE) + talk.on_buffer(rpc.FREE_BUFFER))
    it.hear(talk.answer(struct.pack("<Q", BASE)))
    with pytest.raises(RemoteProtocolError, match="does not have"):
        it.say(talk.set_tensor(Tensor()))


def test_buffers_are_counted_before_they_are_answered() -> None:
    it = Talk()
    for number in range(1, MAX_BUFFERS):
        it.say(talk.alloc())
        if number < 500:
            it.hear(talk.answer(struct.pack("<QQ", HANDLE + number, ROOM)))
    with pytest.raises(RemoteProtocolError, match="more than 1024 buffers"):
        it.say(talk.alloc())


# Answers.


def test_answers_are_those_that_were_asked_for() -> None:
    it = Talk()
    with pytest.raises(RemoteProtocolError, match="an answer to nothing") as caught:
        it.hear(talk.answer(b""))
    assert caught.value.what.startswith("the worker's rpc-server sent")
    assert "on the worker run `meshd native build`" in caught.value.hint


def test_a_refused_request_names_the_head() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        Talk().say(talk.request(99))
    assert caught.value.what == "the head's llama-server sent something that the firewall refuses: command 99"
    assert "one version of meshd" in caught.value.hint


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (talk.request(rpc.DEVICE_COUNT), 4),
        (talk.get_tensor(Tensor(), size=12), 12),
        (talk.load(talk.load_entry(), talk.load_entry()), 2),
        (talk.set_hash(Tensor()), 1),
    ],
)
def test_an_answer_has_the_size_that_was_asked_for(message: bytes, size: int) -> None:
    good, bad = Talk(), Talk()
    good.say(message)
    assert good.hear(talk.answer(bytes(size))) == talk.answer(bytes(size))
    bad.say(message)
    with pytest.raises(RemoteProtocolError, match=f"an answer of {size + 1} bytes"):
        bad.hear(talk.answer(bytes(size + 1)))


def test_answers_come_in_the_order_of_the_requests() -> None:
    it = Talk()
    it.say(talk.get_tensor(Tensor(), size=8) + talk.request(rpc.DEVICE_COUNT) + talk.set_tensor(Tensor()))
    it.hear(talk.answer(bytes(8)) + talk.answer(bytes(4)))
    with pytest.raises(RemoteProtocolError, match="an answer to nothing"):
        it.hear(bytes(8))


def test_a_long_answer_is_not_held() -> None:
    it = Talk()
    it.say(talk.get_tensor(Tensor(ne=(1024, 1, 1, 1)), size=4096))
    assert len(it.hear(talk.answer(bytes(4096))[:100])) == 100
    assert it.firewall.held_bytes == 0


def test_a_client_that_reads_no_answers_is_stopped() -> None:
    it = Talk()
    it.say(talk.request(rpc.DEVICE_COUNT) * MAX_UNANSWERED)
    with pytest.raises(RemoteProtocolError, match="without an answer"):
        it.say(talk.request(rpc.DEVICE_COUNT))


def test_weights_flow_through_and_are_not_held() -> None:
    it = Talk()
    data = talk.set_tensor(Tensor(ne=(1024, 1, 1, 1)), bytes(4096))
    assert len(it.say(data[:313])) == 0
    assert len(it.say(data[313:314])) == 314
    assert len(it.say(data[314:1000])) == 686
    assert it.firewall.held_bytes == 0
    assert len(it.say(data[1000:] + talk.recompute()[:5])) == len(data) - 1000


def test_places_of_many_tensors_are_forgotten_and_checked_again() -> None:
    it = Talk()
    for number in range(2000):
        it.say(talk.set_tensor(Tensor(id=number)))
    with pytest.raises(RemoteProtocolError, match="outside"):
        it.say(talk.set_tensor(Tensor(data=END)))


@given(st.lists(st.binary(max_size=400), max_size=6), st.booleans())
def test_garbage_raises_nothing_but_the_protocol_error(chunks: list[bytes], answers: bool) -> None:
    it = Talk()
    for chunk in chunks:
        try:
            (it.hear if answers else it.say)(chunk)
        except RemoteProtocolError:
            return


@given(
    st.sampled_from([*HONEST, *(message for _, message in HOSTILE)]),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=6),
)
def test_damaged_requests_raise_nothing_else(message: bytes, damage: list[tuple[int, int]]) -> None:
    broken = bytearray(message)
    for at, value in damage:
        broken[at % len(broken)] = value
    it = Talk()
    try:
        it.say(bytes(broken))
    except RemoteProtocolError:
        return


def test_a_request_like_the_last_one_passes_and_one_byte_more_is_refused() -> None:
    it = Talk()
    for size in (16, 16, 4):
        it.say(talk.set_tensor(Tensor(), bytes(size)))
    with pytest.raises(RemoteProtocolError, match="beyond the end"):
        it.say(talk.set_tensor(Tensor(), bytes(17)))
