"""A stranger that opens TCP connections and says nothing, or begins TLS: as many a second as asked for.

    connecting.py HOST PORT RATE WORDS COUNT SOURCE...

Connects to HOST from each SOURCE in turn and keeps each connection until the other side closes it. WORDS:
`silent`, or `hello` to send a ClientHello on each. Prints a line when the first is connected, and ends with
its input; then it has written to the file COUNT how many were connected, and in how many seconds since the
first attempt. Only the standard library is imported.
"""

import contextlib
import errno
import itertools
import select
import signal
import socket
import ssl
import sys
import time
from pathlib import Path

assert sys.platform == "linux", "epoll"
MOST = 900  # open at a time: below the usual limit of descriptors
TURN = 0.005


def client_hello() -> bytes:
    """Return the first flight of a TLS client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(coming, going).do_handshake()
    return going.read()


def main(host: str, port: str, rate: str, words: str, count: str, *sources: str) -> None:
    """Run the program described at the top of the file."""
    # it comes with the end of the input, before the count is out
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hello = client_hello() if words == "hello" else b""
    turns = itertools.cycle(sources)
    open_now: dict[int, socket.socket] = {}
    connecting = set[int]()
    poll = select.epoll()
    poll.register(0, select.EPOLLIN)
    began, made, connected = time.monotonic(), 0, 0
    while True:
        due = int((time.monotonic() - began) * float(rate)) + 1
        while made < due:
            made += 1
            if len(open_now) >= MOST:
                continue
            sock = socket.socket()
            sock.setblocking(False)
            sock.bind((next(turns), 0))
            if sock.connect_ex((host, int(port))) not in (0, errno.EINPROGRESS):
                sock.close()
                continue
            open_now[sock.fileno()] = sock
            connecting.add(sock.fileno())
            poll.register(sock, select.EPOLLOUT | select.EPOLLIN)
        for number, events in poll.poll(TURN):
            if number == 0:
                Path(count).write_text(f"{connected} {time.monotonic() - began}")
                return
            sock = open_now[number]
            if number in connecting:
                connecting.discard(number)
                # the server may have ended it already, which is one that was connected as well
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in (0, errno.ECONNRESET):
                    connected += 1
                    if connected == 1:
                        sys.stdout.write("connected\n")
                        sys.stdout.flush()
                with contextlib.suppress(OSError):
                    sock.send(hello)
            if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                with contextlib.suppress(OSError):
                    if sock.recv(1 << 16):
                        continue  # the server's part of the handshake
                poll.unregister(number)
                open_now.pop(number).close()
            else:
                poll.modify(number, select.EPOLLIN)


if __name__ == "__main__":
    main(*sys.argv[1:])
