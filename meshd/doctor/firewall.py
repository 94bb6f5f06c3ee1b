"""Read the rules of nftables, as `nft list ruleset` prints them: do they let others reach a port? Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_CHAIN = re.compile(r"\s*chain (?P<name>\S+) \{")
_BASE = re.compile(r"type filter hook input .*?(?:policy (?P<policy>\w+);)?\s*$")
_PORTS = re.compile(r"\b(?:tcp|udp|th) dport (?:\{ ?(?P<set>[^}]*)\}|(?P<one>[\w-]+))")
_JUMP = re.compile(r"\b(?:jump|goto) (?P<chain>\S+)$")
_COUNTED = re.compile(r"counter packets \d+ bytes \d+ ?|counter ?")
_FINAL = ("drop", "reject")
# A rule with one of these says nothing about connections that another machine begins.
_NARROW = re.compile(r"ct state (?!new|\{[^}]*new)|iif(name)? \"?lo\"?\b|icmp|igmp|ct status|fib daddr type")


@dataclass(slots=True)
class _Chain:
    policy: str = ""  # of a base chain for what comes in
    rules: list[str] = field(default_factory=list)


def lets_in(lines: Sequence[str], port: int) -> bool:
    """Return False if what comes in is dropped in the end, and no rule lets strangers reach this port.

    A rule for some addresses or interfaces, or for a named set of ports, counts as one that lets them in: a
    wrong alarm costs more than none.
    """
    chains = _chains(lines)
    closing = [chain for chain in chains.values() if chain.policy and _closes(chain)]
    return all(_admits(chain, chains, port, frozenset()) for chain in closing)


def _chains(lines: Sequence[str]) -> dict[str, _Chain]:
    found: dict[str, _Chain] = {}
    chain: _Chain | None = None
    for line in lines:
        if begins := _CHAIN.match(line):
            chain = found.setdefault(begins["name"], _Chain())
        elif line.strip() == "}":
            chain = None
        elif chain is not None:
            text = line.strip()
            if base := _BASE.search(text):
                chain.policy = base["policy"] or "accept"
            elif not text.startswith("type "):
                chain.rules.append(text)
    return found


def _closes(chain: _Chain) -> bool:
    last = _without_counters(chain.rules[-1]) if chain.rules else ""
    return chain.policy in _FINAL or last.startswith(_FINAL)


def _admits(chain: _Chain, chains: dict[str, _Chain], port: int, seen: frozenset[str]) -> bool:
    for rule in map(_without_counters, chain.rules):
        if rule.startswith(_FINAL):
            return False
        jump = _JUMP.search(rule)
        target = jump["chain"] if jump and jump["chain"] in chains.keys() - seen else ""
        applies = not _NARROW.search(rule) and all(_names(given, port) for given in _PORTS.finditer(rule))
        if applies and rule.endswith("accept"):
            return True
        if applies and target and _admits(chains[target], chains, port, seen | {target}):
            return True
    return False


def _names(given: re.Match[str], port: int) -> bool:
    return any(low <= port <= high for low, high in _ranges(given["set"] or given["one"]))


def _ranges(text: str) -> Iterator[tuple[int, int]]:
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        if low.isdigit() and (high or low).isdigit():
            yield int(low), int(high or low)


def _without_counters(rule: str) -> str:
    return _COUNTED.sub("", rule).strip()
