"""The closed lists of log events and fields, with their meanings.

docs/logging.md is generated from these and from the calls themselves (`make reference`). A test fails for an
event or a field that is missing here, and for one here that nothing logs.
"""

from collections.abc import Mapping

FIELDS: Mapping[str, str] = {
    "area": "the package that logs",
    "bytes": "a size",
    "cause": "who caused the work that failed: a peer, a host, a relay, a router",
    "child": "a child process's name",
    "code": "of a refusal or a protocol violation: [errors.md](errors.md)",
    "compressed": "whether the traffic is compressed",
    "count": "how many",
    "device": "a device as llama.cpp names it",
    "file": "a file",
    "free": "free bytes",
    "group": "a process group",
    "hint": "what to do",
    "interface": "a network interface",
    "kind": "the kind of a device, link, NAT or router protocol",
    "left_out": "how many lines like this one were suppressed before it",
    "library": "of Python, by the name under which it logs",
    "link": "number or kind of a link",
    "listen": "addresses at which others reach this node",
    "mesh": "the beginning of the mesh's id",
    "model": "the name of a model",
    "name": "a node's name",
    "node": "the beginning of a node's id, or its name",
    "path": "a file",
    "peer": "the beginning of a peer's id, or its name",
    "pid": "a process id",
    "place": "where in the source code it failed",
    "remote": "`host:port` of the other end; on a unix socket `user UID`",
    "seconds": "a duration",
    "service": "of a stream or tunnel",
    "source": "the worker with the preceding layers",
    "state": "of the model",
    "target": "the worker with the following layers",
    "tensor": "a tensor's name",
    "url": "of the API",
    "what": "what happened",
    "why": "the reason, in words",
}

EVENTS: Mapping[str, str] = {
    "accept_paused": "no file descriptor is free for new connections: close something, or raise the limit",
    "addresses_changed": "this machine's addresses changed; all links are tested at once",
    "answer_differs": "an interrupted answer came out otherwise; the rest is asked for, if possible",
    "answer_log_back": "lines of the log of answers are written again; `count` were lost",
    "answer_log_lost": "a line of the log of answers could not be written",
    "answer_not_kept": "an answer could not be written for a client that may come back; later ones are tried",
    "api_listening": "the API is up",
    "api_state": "which models can be asked for through this client, or why none can",
    "ban_refused": "an invalid ban came from a peer, and was dropped",
    "banned": "the first member that considers this node banned, and what to do; logged once",
    "capacity_not_told": "a member asked what this node's devices could lend, and got no answer",
    "child_backoff": "a child process exited unexpectedly, and will be restarted later",
    "child_does_not_end": "processes of a child's group are still alive after SIGKILL",
    "child_ended": "a child process exited by itself and without an error, and is not restarted",
    "child_failed": "a child process exited unexpectedly, and is not restarted",
    "child_log_lost": "a child's output could not be written to its log",
    "child_ready": "a child process is ready",
    "child_starting": "a child process is being started",
    "child_stopped": "a child process has exited",
    "child_stopping": "a child process is asked to exit",
    "connection_owner_unreadable": "/proc could not be read, so a local connection to a tunnel was refused",
    "context_shortened": "the context asked for is longer than what the model was trained for",
    "correction_not_kept": (
        "how long answers took, against what was predicted, could not be written to the cache; later answers "
        "say it again"
    ),
    "device": "a device that this worker lends",
    "device_measured": "the speed of a device was measured, with `count` kinds of layers",
    "device_not_measured": "the speed of a device could not be measured; it is estimated",
    "device_tried": "a device has passed its trial, with `count` operations",
    "device_unfit": "a device has failed its trial, and why; it is not used",
    "draft_model_unused": "a draft model was given, and nothing is drafted with it, and why",
    "group_not_empty": "processes of a child's group are still running",
    "guard_not_replaced": "the file that names a guard could not be changed",
    "hashing": "a model file is read once to hash its tensors",
    "head_not_followed": "a head does not tell this client what it serves; it is asked again",
    "holder_lied": "a member gave another model than it had said: what came from it was removed",
    "holder_lost": "a member gives no more pieces of a model that is pulled or loaded, and why",
    "join_not_used": "`--join` names a mesh that this home is already a member of; its token was not used",
    "joined_pipe_over": (
        "the connection over which this node joined does not become a link; others are dialled"
    ),
    "joiner_refused": "a node wanted to join and was refused, and why",
    "kept_weights_damaged": (
        "a file of the content store is damaged: it is removed, and its tensors will be sent again"
    ),
    "kept_weights_removed": "the least recently used weights were removed to make room for others",
    "lease_ended": "a head's use of this worker has ended; its memory is free",
    "lease_failed": "the rpc-server of a lease could not be started",
    "lease_granted": "a head uses this worker",
    "lease_refused": "a head requested a lease and was refused, and why",
    "library_said": "a Python library has warned of something, or failed at it: its own words, cut",
    "link_ended": "a link that was no longer used ended",
    "link_lost": "a link broke; the session waits for another, unless one of both nodes has left (debug)",
    "link_refused": "the other side refused a link, and why",
    "link_surplus": "another link of a peer was closed because it has as many as allowed",
    "link_up": "a link to a peer carries data",
    "llama_server_commit_unknown": "llama-server in `--native-bin` does not say of which commit it is",
    "llama_server_killed": "llama-server is suspended; it is killed, and the model is loaded again",
    "load_started": "the next load of the model begins: `count` workers are asked",
    "log_lines_lost": "the log file could not be written for a while; `count` lines are missing",
    "member_admitted": "a node joined with an invite of this node",
    "mesh_founded": "this node founded a mesh",
    "mesh_joined": "this node joined a mesh",
    "model_failed": "the model cannot be served, and why",
    "model_file_changed_while_read": "a model file was replaced while it was hashed; it is read again",
    "model_file_gone": "a model file was removed; data that is still open stays in use",
    "model_file_incomplete": "a model file is truncated or lacks shards; the rest comes over the network",
    "model_file_replaced": "a path leads to another file, which this worker uses from now on",
    "model_lost": "the model was lost with a worker or llama-server, or not loaded; it is tried again",
    "model_not_given": "a member wanted pieces of a model whose files cannot be opened",
    "model_not_pulled": "a model was not pulled from members, and why",
    "model_pulled": "a model was pulled from members: it is whole and checked",
    "model_state": "waiting, loading, ready, failed or unloaded, and why; for degraded see `link_lost`",
    "models_not_told": "a member asked about models, and got no answer",
    "name_shared": "several nodes have the same name (`what` lists them), so verbs cannot use it",
    "nat_symmetric": "each server sees another public port of this node, so a reply code may not work",
    "native_bin_lacks": "the folder of `--native-bin` lacks a program: meshd's own is used in its place",
    "neighbour": "a member appeared on the local network (mDNS), or disappeared",
    "network": "the kind of network this node is in, after a check that differed from the last one",
    "network_joined": "this node is announced by mDNS on a local network",
    "network_not_joined": "mDNS does not work on a network, and why; it is tried again",
    "news_dropped": "a statement in a peer's news was invalid, and was dropped",
    "news_refused": (
        "too many of a peer's news were invalid or broke the protocol: its news stream is ended, "
        "and reopened after a while"
    ),
    "no_invite": "this node prints no token: the disk takes no new invite",
    "offer_unreadable": "a peer's offer of a link over ICE is malformed; it is dropped",
    "option_refused": "the system refused a socket option, so mDNS also hears other networks",
    "passing_on": "this node forwards traffic between two others that cannot reach each other",
    "path_chosen": "data moves to another link of a peer, and why",
    "peer_banned": "a peer was banned; its sessions are closed",
    "peer_broke_protocol": "a peer broke the protocol; its link is closed",
    "peer_left": "a peer said goodbye, or has left the mesh",
    "peer_refuses": "a peer refuses this node, and why (for bans see `banned`)",
    "plain_rpc": (
        "a plain rpc-server of `--rpc` is used: weights go to it, neither encrypted nor authenticated"
    ),
    "plan": "which layers are on which device",
    "port_mapped": "the home router maps a port to this node, and by which protocol",
    "port_not_mapped": "the home router maps no port, and why",
    "port_not_renewed": "a port mapping could not be renewed",
    "port_not_unmapped": "a port mapping could not be removed",
    "punch_failed": "a peer's attempt at TCP hole punching failed, and why",
    "push_broken": "a worker's connection to the next worker broke",
    "push_direct": "activations go straight from one worker to the next",
    "push_no_way": "this worker cannot reach a neighbour, and why",
    "push_refused": "a member opened a stream to a lent rpc-server without being admitted by its head",
    "push_through_head": "activations from one worker to the next go through the head, and why",
    "push_untold": "an rpc-server that was ending was not told about a neighbour any more",
    "push_way": "this worker can reach a neighbour",
    "record_dropped": "a peer's record was forgotten",
    "record_refused": "an invalid record was received and dropped",
    "relay_client_gone": "a connection to this relay ended, with or without a proven key, and why",
    "relay_connected": "connected to a relay: this node can be called there",
    "relay_lost": "the connection to a relay ended, and why; it is made again",
    "relay_ready": "this relay is listening",
    "relay_unreachable": "a relay cannot be reached, and why; it is tried again",
    "reply_accepted": "a reply code was accepted: this node sends to its addresses for two minutes",
    "router_forgot": (
        "the home router was restarted or has a new address: the port mapping is requested again"
    ),
    "rpc_refused": (
        "a head, a neighbour or the rpc-server itself sent something that the firewall refuses "
        "(`why` says which); that connection has ended"
    ),
    "rpc_server_killed": (
        "an rpc-server hangs or is suspended; it is killed, and its lease has ended. `why` says "
        "how that was detected"
    ),
    "search_failed": "a peer's port search through a NAT failed, and why",
    "signal_dropped": "a signal was not accepted, and why",
    "signal_refused": "a peer's signal is malformed; it is dropped",
    "signal_way_failed": "one of the channels for a signal failed",
    "smaller_model": "the model does not fit any more: the smaller one that is tried, and why",
    "speed_not_kept": (
        "the speed of a device could not be written to the cache; it is measured again next time"
    ),
    "standby_held": "the weights that a standby worker holds, and for which losses",
    "standby_not_ready": "a standby worker holds nothing, or not all, and why; it is asked again",
    "state_not_written": (
        "a file of the home cannot be written, and why: the node continues from memory and tries again"
    ),
    "state_written": "the file could be written again",
    "stopping": "the daemon is stopping, and why",
    "stream_ended": "a stream ended",
    "stream_failed": "a service ended with an error",
    "stream_refused": "a peer opened a stream that it has no access to",
    "stun_silent": "no STUN server answered while a reply code was made",
    "surveying": "looking at the machines for a plan: what is measured",
    "trial_not_kept": (
        "a device passed its trial, but that could not be saved; it is tried again after a restart"
    ),
    "tunnel_broken": "a tunnelled connection broke the protocol",
    "tunnel_foreign_client": "a process that does not belong to meshd connected to a tunnel's listener",
    "tunnel_full": "a tunnel has as many connections as allowed",
    "tunnel_opened": "a connection to a worker goes through a tunnel; whether it is compressed, and why",
    "tunnel_user_unknown": (
        "this system does not tell which user connects to a user's tunnel: any local user can use it"
    ),
    "tunnel_waits": "a user's tunnel cannot listen on its port, and tries again",
    "udp_port_taken": "another program uses the mesh port for UDP, so no QUIC link can come in",
    "upstream_broke": "llama-server broke the connection during an answer",
    "upstream_lost": "llama-server was lost during an answer",
    "weight_from_network": "a tensor comes over the network, and why",
    "weights_cache_not_written": "the cache of hashes cannot be written: the file is read again next time",
    "weights_cache_unusable": "the cache of hashes cannot be used: the file is read again next time",
    "weights_fetched": "this worker took weights from members for a head, and from which; or why not",
    "weights_from_network": (
        "the number of tensors that come over the network, if they are too many to be named one by one"
    ),
    "weights_kept": "weights that came over the mesh are on disk, for the next load",
    "weights_known": "a model file's tensors have been hashed",
    "weights_loaded": "this worker loaded weights from its own file",
    "weights_missing": "workers lack so much of their parts, and fetch it from members",
    "weights_not_kept": (
        "some weights that came over the mesh are not kept, and why: the next load sends them again"
    ),
    "weights_not_shared": (
        "the head could not compare its file with those of members: it sends what is missing"
    ),
    "weights_store_unusable": "the content store cannot be used, and why: nothing is kept",
    "weights_unknown": "a model file cannot be read any more: its weights come over the network",
    "woke_up": "this node was asleep or suspended; all links are tested",
    "work_ended": "such work ended with a known error",
    "work_failed": (
        "work caused by a peer or another outsider failed unexpectedly: it has ended, the daemon "
        "continues. Please report it"
    ),
    "worker_fetched": "what a worker took from members before the load, and from which",
    "worker_left_out": "a worker is left out of the split, and why",
    "worker_tried_again": "a worker that was left out is tried again",
    "worker_unsteady": (
        "a worker ended leases soon after the load, or did not answer: it is left out while there "
        "are enough others"
    ),
    "worker_used_all_the_same": "such a worker is used anyway, because there are too few others",
}
