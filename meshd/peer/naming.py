"""Which peer a text means, or an error that says what to do.. the rules are in identity/naming.py. Pure."""

from collections.abc import Mapping

from meshd.base.errors import UserError
from meshd.identity import naming
from meshd.identity.keys import PeerId


class UnknownPeer(UserError):
    """No peer has that name or id."""


def find(text: str, *, me: PeerId, names: Mapping[PeerId, str]) -> PeerId:
    """The one of `names`, which include ours. Raises UnknownPeer, or UserError for this node or several."""
    by_id = {str(peer): peer for peer in names}
    found = [by_id[node] for node in naming.meant(text, {str(peer): name for peer, name in names.items()})]
    if not found:
        raise UnknownPeer(f"no node `{text}` is known", hint="run `meshd peers` for names and ids")
    if len(found) > 1:
        found.sort(key=lambda peer: peer != me)
        shown = ", ".join("this node" if peer == me else peer.short for peer in found)
        raise UserError(
            f"`{text}` matches {len(found)} nodes: {shown}",
            hint="give the first ten characters of its id, or more",
        )
    if found == [me]:
        raise UserError(f"`{text}` is this node itself", hint="give another node's name or id")
    return found[0]
