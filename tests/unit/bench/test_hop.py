"""The client and the server of the measurement understand each other, also past what a daemon reads."""

import socket
import threading

from meshd.rpc.mesh_lease_view import MeshLeaseView

from tests.bench.hop import HopClient
from tests.bench.hop_ends import serve


def test_they_understand_each_other() -> None:
    here, there = socket.socketpair()
    server = threading.Thread(target=serve, args=(there, 0.0))
    server.start()
    try:
        with here:
            here.settimeout(60)
            client = HopClient(here)
            for size in (1, 64, 100_000):
                assert len(client.round_trips(size, 2)) == 2
            assert client.write(3 << 20) > 0
            assert client.read(3 << 20) > 0
    finally:
        server.join()
        there.close()


def test_what_a_daemon_reads_lets_them_pass() -> None:
    near, far = socket.socketpair()
    here, there = socket.socketpair()
    view = MeshLeaseView()

    def pump(source: socket.socket, sink: socket.socket, name: str) -> None:
        while data := source.recv(1 << 20):
            sink.sendall(getattr(view, name)(data))
        sink.shutdown(socket.SHUT_WR)

    threads = [
        threading.Thread(target=serve, args=(there, 0.0)),
        threading.Thread(target=pump, args=(far, here, "from_peer")),
        threading.Thread(target=pump, args=(here, far, "to_peer")),
    ]
    for thread in threads:
        thread.start()
    near.settimeout(60)
    client = HopClient(near)
    assert len(client.round_trips(5000, 2)) == 2
    near.shutdown(socket.SHUT_WR)
    for thread in threads[1:2]:
        thread.join()
    there.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join()
    for end in near, far, here, there:
        end.close()
