"""Words for events of the log, for the page of the mesh. All daemons import it, for the events to keep."""

from collections.abc import Mapping
from types import MappingProxyType

# By event of the log. `{who}`: the peer's name, if it is known.
WORDS: Mapping[str, str] = MappingProxyType(
    {
        # members
        "mesh_founded": "this node founded a mesh",
        "mesh_joined": "this node joined the mesh",
        "member_admitted": "{who} joined the mesh",
        "joiner_refused": "a node that wanted to join was refused: {why}",
        "link_up": "{who} is connected by {link}",
        "link_lost": "the connection to {who} by {link} ended: {why}",
        "peer_gone": "{who} is lost: {why}",
        "peer_left": "{who} said goodbye",
        "peer_banned": "{who} was banned: {why}",
        "peer_refuses": "{who} refuses this node: {why}",
        "peer_broke_protocol": "{who} broke the protocol: {why}",
        "version_refused": "a node of another version was refused: {why}",
        "banned": "this node is banned: {why}",
        # this machine and its network
        "woke_up": "this machine slept for {seconds} s",
        "addresses_changed": "this machine's addresses changed",
        "relay_connected": "connected to the relay {remote}",
        "relay_lost": "the connection to the relay {remote} ended: {why}",
        "relay_unreachable": "the relay {remote} cannot be reached: {why}",
        "device_unfit": "the device {device} is not used: {why}",
        "child_failed": "{child} has ended: {why}",
        # a model that is served
        "model_state": "{model}: {state}: {why}",
        "model_lost": "{model} was interrupted: {why}",
        "smaller_model": "another model than {file} is tried: {why}",
        "worker_left_out": "{who} is left out: {why}",
        "worker_unsteady": "{who} is left out: {why}",
        "llama_server_killed": "llama-server was ended: {why}",
        "standby_held": "{who} stands by: {why}",
        "standby_not_ready": "{who} does not stand by yet: {why}",
        "upstream_lost": "an answer was interrupted: {why}",
        "answer_continues": "an answer that was interrupted continues",
        "answer_differs": "an answer that was interrupted came out otherwise: {why}",
        "api_state": "models of other nodes: {state}: {why}",
        # what this machine lends
        "lease_granted": "{who} uses this machine",
        "lease_ended": "{who} no longer uses this machine",
        "lease_refused": "{who} may not use this machine: {why}",
        "lease_failed": "{who} could not use this machine: {why}",
        "memory_taken": "less memory is free than was offered to {who}: {why}",
        "mesh_server_killed": "the work for {who} was ended: {why}",
        # models on disk
        "model_fetched": "{model} is on this machine now",
        "model_pulled": "{file} was copied from members",
        "model_not_pulled": "{file} was not copied from members: {why}",
        "holder_lied": "{who} sent another model than it had announced: {why}",
        "tunnel_waits": "the tunnel to {service} waits: {why}",
    }
)
