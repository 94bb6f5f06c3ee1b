"""How nodes find each other: tokens, records, and who is near. What others may see of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MdnsStatus:
    """`networks` are interfaces that are joined; `members` of this mesh are seen there now.

    `heard`: some node, of whatever mesh, has been heard since the start. `silent`: none, and there was time.
    """

    networks: tuple[str, ...]
    members: int
    heard: bool
    silent: bool
    why: str  # what keeps it from working, in words; empty when nothing is known to
