"""The daemon as seen from outside: names and bounds that both ends of the control socket know.

A unix socket in the node's home carries one JSON object a line, request and reply in turn (server.py,
client.py). The values are in api.py; the daemon answers them (`Answers` of request.py).
Only the user who runs the daemon can open the socket, so the CLI needs no further authentication.
"""

SOCKET_NAME = "control.sock"
POINTER_NAME = "control.sock.path"  # holds the true path where the home's own is too long for a socket
MAX_SOCKET_PATH_BYTES = 100  # sun_path takes 104 on macOS, 108 on Linux, with the final zero
MAX_LINE_BYTES = 64 << 10  # a request; replies may be as long as they are
MAX_REPLY_BYTES = 8 << 20
MAX_CONNECTIONS = 16
