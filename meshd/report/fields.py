"""The fields of a node's replies that a report shows, and those that it leaves out. Pure.

Every field of every value stands in one of the two lists: a test compares them with the declarations, so
that a new field is decided upon. Text of peers and models becomes one line of bounded length.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum

from meshd.admin.api import NatView, NetcheckReply, PortMappingView, ProblemView
from meshd.admin.plan_api import AdviceView, AnswerTime, WaysView, WhyReply
from meshd.admin.status import (
    ChildView,
    DeviceView,
    DrainView,
    HealthWarning,
    LinkView,
    MeshView,
    NodeView,
    PeerView,
    Status,
    StorageView,
    TunnelView,
)
from meshd.gateway.interface import GatewayStatus
from meshd.model.status import (
    AnswersAtOnce,
    DrainStatus,
    FetchSource,
    FetchStatus,
    LentMemory,
    ModelStatus,
    NetworkTensor,
    SpeculationStatus,
    Speeds,
    SplitPart,
    StandbyStatus,
    StoreStatus,
    WorkerWeights,
)
from meshd.model.time_account import TimeAccount, TimePart
from meshd.rendezvous.interface import MdnsStatus

MOST_ITEMS = 64  # of a list
MOST_CHARS = 500  # of a text
_DIGITS = 6  # of a fraction

SHOWN: Mapping[type, str] = {
    Status: "node mesh peers tunnels children model api mdns store warnings models devices storage lent"
    " fetching",
    NodeView: "id name role version pid uptime_s rss_bytes listen home paused draining",
    DrainView: "models requests",
    MeshView: "id members roles",
    PeerView: "id name role version state state_s present link standby_links why_not_direct resumes native"
    " native_protocol last_error says_banned says_in_use grace_s stopped faults last_fault paused fetching"
    " draining upgrade",
    LinkView: "kind path remote rtt_ms since sent_bytes received_bytes bytes_s",
    TunnelView: "peer peer_name service listen streams sent_bytes received_bytes user last_error",
    ChildView: "name pid state restarts reason",
    DeviceView: "name kind description free_bytes total_bytes listed_s weight_bytes_s flops",
    StorageView: "path free_bytes cache_room_bytes models models_bytes",
    HealthWarning: "code severity what hint",
    GatewayStatus: "url ready reason requests tokens running waiting continue_s",
    MdnsStatus: "state networks members why",
    StoreStatus: "path bytes limit tensors problem",
    LentMemory: "head head_name model bytes state computed_s",
    FetchStatus: "name step activity source done_bytes total_bytes bytes_s sources",
    FetchSource: "node bytes problem",
    ModelStatus: "name fingerprint state reason progress load_seconds measuring_seconds weights_local_bytes"
    " weights_network_bytes weights_fetched_bytes tensors_from_network bytes_per_token split split_why"
    " by_tensors workers too_few_workers answers predicted measured estimated speculation standby fallbacks"
    " fallback aliases group ttl_s running waiting draining",
    DrainStatus: "workers answers",
    NetworkTensor: "name bytes node reason",
    WorkerWeights: "node total_bytes local_bytes missing_bytes sent_bytes",
    SplitPart: "node device layers bytes push why_no_push",
    AnswersAtOnce: "slots tokens shared note",
    Speeds: "prompt_tok_s generate_tok_s",
    SpeculationStatus: "free model drafted accepted gain why why_no_model",
    StandbyStatus: "node ready held_bytes wanted_bytes why",
    NetcheckReply: "udp tcp nat tcp_nat ipv6 hairpin public_v4 public_v6 carrier_nat port_mapping direct"
    " problems servers age_s daemon",
    NatView: "kind mapping filtering ports step",
    PortMappingView: "state language gateway external mappings verified why",
    ProblemView: "code severity what hint",
    WhyReply: "model split requests answers token prompt round why_no_round advice generate_tok_s_at_load"
    " since_load ways by_tensors",
    WaysView: "layers_tok_s tensors_tok_s text",
    AnswerTime: "running alone ended_s_ago queue_s prompt_tokens prompt_s generated_tokens generated_s",
    AdviceView: "change gain why generate_tok_s generate_tok_s_then measured",
    TimeAccount: "seconds tokens rounds parts unexplained",
    TimePart: "kind where seconds source",
}
LEFT_OUT: Mapping[type, str] = {
    Status: "schema",
    GatewayStatus: "keys",  # names of API keys are names of people
}


def lines_of(value: object, indent: int = 0) -> Iterator[str]:
    """Yield the fields of a value that are shown and not empty, each with its name."""
    for name in SHOWN[type(value)].split():
        item = getattr(value, name)
        before = f"{' ' * indent}{name}:"
        if item is None or item == "" or item == ():
            continue
        if is_dataclass(item):
            yield before
            yield from lines_of(item, indent + 2)
        elif isinstance(item, tuple) and is_dataclass(item[0]):
            yield before
            yield from _items(item, indent + 2)
        elif isinstance(item, tuple):
            yield f"{before} {in_line(', '.join(map(_word, item[:MOST_ITEMS])))}"
        else:
            yield f"{before} {_word(item)}"


def _items(items: Sequence[object], indent: int) -> Iterator[str]:
    for item in items[:MOST_ITEMS]:
        first = True
        for line in lines_of(item, indent + 2):
            yield f"{' ' * indent}- {line[indent + 2 :]}" if first else line
            first = False
    if len(items) > MOST_ITEMS:
        yield f"{' ' * indent}and {len(items) - MOST_ITEMS} more"


def _word(value: object) -> str:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.{_DIGITS}g}" if abs(value) < 1e6 else f"{value:.0f}"
    return in_line(str(value))


def in_line(text: str, most: int = MOST_CHARS) -> str:
    """Return text as one printable line of at most so many characters, and how many more there are."""
    cut = len(text) - most
    shown = text[:most] if cut > 0 else text
    if not shown.isprintable():
        shown = "".join(char if char.isprintable() else _escaped(char) for char in shown)
    return f"{shown}… ({cut} more characters)" if cut > 0 else shown


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode()
