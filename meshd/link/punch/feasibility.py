"""Decides whether two networks let TCP be punched, as far as both nodes' facts tell. Pure.

Unknown facts are no reason against trying: an attempt is cheap, and a relay carries the data meanwhile.
"""

from meshd.wire.netfacts import Mapping, NetFacts, Tcp, TriState


def worth_trying(mine: NetFacts | None, theirs: NetFacts | None) -> bool:
    """Return False where no simultaneous open can work, to save useless SYNs every half minute."""
    if mine is None or theirs is None:
        return True
    if any(facts.tcp in (Tcp.ONLY_443, Tcp.BLOCKED) for facts in (mine, theirs)):
        return False
    if mine.ipv6 is theirs.ipv6 is TriState.YES:
        return True
    if mine.public_v4 and mine.public_v4 == theirs.public_v4:
        return True  # perhaps in one LAN
    return not (_hidden(mine, theirs) or _hidden(theirs, mine))


def _hidden(facts: NetFacts, other: NetFacts) -> bool:
    """Return True if nobody can tell where `one` will be seen, but `other` must know it to let it in."""
    return facts.tcp_symmetric and other.tcp_mapping not in (Mapping.UNKNOWN, Mapping.NONE)
