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
        "link_up": "{who} connected over {link}",
        "link_lost": "the {link} connection to {who} ended: {why}",
        "peer_gone": "lost {who}: {why}",
        "peer_left": "{who} disconnected",
        "peer_banned": "{who} was banned: {why}",
        "peer_refuses": "{who} refuses this node: {why}",
        "peer_broke_protocol": "{who} violated the protocol: {why}",
        "version_refused": "a node of another version was refused: {why}",
        "banned": "this node is banned: {why}",
        # this machine and its network
        "woke_up": "this machine was asleep for {seconds} s",
        "addresses_changed": "this machine's addresses changed",
        "relay_connected": "connected to the relay {remote}",
        "relay_lost": "the connection to the relay {remote} ended: {why}",
        "relay_unreachable": "the relay {remote} cannot be reached: {why}",
        "device_unfit": "not using the device {device}: {why}",
        "child_failed": "{child} exited: {why}",
        # a model that is served
        "model_state": "{model} ({state}): {why}",
        "model_lost": "{model} was interrupted: {why}",
        "smaller_model": "trying another model instead of {file}: {why}",
        "worker_left_out": "{who} is left out: {why}",
        "worker_unsteady": "{who} is left out: {why}",
        "llama_server_killed": "llama-server was stopped: {why}",
        "standby_held": "{who} is on standby: {why}",
        "standby_not_ready": "{who} is not on standby yet: {why}",
        "upstream_lost": "an answer was interrupted: {why}",
        "answer_continues": "an interrupted answer continues",
        "answer_differs": "an interrupted answer came out differently: {why}",
        "api_state": "models of other nodes ({state}): {why}",
        # what this machine lends
        "lease_granted": "{who} uses this machine",
        "lease_ended": "{who} no longer uses this machine",
        "lease_refused": "{who} was not allowed to use this machine: {why}",
        "lease_failed": "{who} could not use this machine: {why}",
        "memory_taken": "less memory is free than {who} was offered: {why}",
        "mesh_server_killed": "the work for {who} was stopped: {why}",
        # models on disk
        "model_fetched": "{model} is on this machine now",
        "model_pulled": "{file} was copied from other machines",
        "model_not_pulled": "{file} could not be copied from other machines: {why}",
        "holder_lied": "{who} sent a different model from the one it announced: {why}",
        "tunnel_waits": "the tunnel to {service} is waiting: {why}",
    }
)
