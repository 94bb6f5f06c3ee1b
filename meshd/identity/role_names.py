"""What a node says in its record that it does: what other nodes look for there. Pure."""

HEAD_ROLE, WORKER_ROLE = "serve", "worker"
CLIENT_ROLE = "client"
