"""The names by which a node's record says what it does, and by which other nodes find it. Pure."""

HEAD_ROLE, WORKER_ROLE = "serve", "worker"
CLIENT_ROLE = "client"
