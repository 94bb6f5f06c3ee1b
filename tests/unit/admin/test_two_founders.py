"""Two machines hold the root key and ban and readmit the same node: the last word counts, on every node.

One of them may have been restored without knowing anything of what the other one has said.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

from meshd.admin.authority import Authority
from meshd.identity.keys import KeyPair, MeshId
from meshd.identity.keystore import Home
from meshd.identity.revocation import RevocationSet, ban

NOW = 1_790_000_000
ROOT = KeyPair.from_seed(b"r" * 32)
MESH = MeshId.of(ROOT.peer)
GUEST = KeyPair.from_seed(b"g" * 32).peer
STEPS = ((0, "ban"), (0, "lift"), (1, "ban"), (1, "lift"), (0, "meet"))


def says(bans: RevocationSet, act: str, now: int) -> bool:
    """Return True if this founder has banned or readmitted the guest: only a known ban can be lifted."""
    lifts = act == "lift"
    if lifts and not bans.why_node_banned(GUEST):
        return False
    target = GUEST.raw
    epoch = bans.next_epoch("node", target, now=now)
    return bans.add(
        ban(
            signer=ROOT,
            chain=None,
            mesh=MESH,
            kind="node",
            target=target,
            issued_at=now,
            epoch=epoch,
            lifts=lifts,
        )
    )


def play(steps: Sequence[tuple[int, str]]) -> tuple[bool, RevocationSet, RevocationSet]:
    """Let both founders do this, a second apart, then meet; return also whether the last word was a ban."""
    books = RevocationSet(MESH), RevocationSet(MESH)
    banned = False
    for now, (who, act) in enumerate((*steps, (0, "meet")), start=NOW):
        if act == "meet":
            books[0].merge(books[1].entries())
            books[1].merge(books[0].entries())
        elif says(books[who], act, now):
            banned = act == "ban"
    return banned, *books


def test_the_last_word_counts_whoever_said_what_and_knew_of_it() -> None:
    for steps in itertools.product(STEPS, repeat=4):
        banned, one, other = play(steps)
        assert one.digest() == other.digest()
        assert bool(one.why_node_banned(GUEST)) is banned, steps


def test_a_founder_whose_clock_is_behind_by_years_still_replaces_what_it_knows() -> None:
    book = RevocationSet(MESH)
    assert says(book, "ban", NOW)
    assert says(book, "lift", 5)
    assert says(book, "ban", 7)
    assert book.why_node_banned(GUEST)


def test_a_ban_by_a_restored_founder_is_not_undone_by_a_lift_that_it_did_not_know(tmp_path: Path) -> None:
    first, second = Home(tmp_path / "first"), Home(tmp_path / "second")
    mesh = first.found_mesh(now=NOW).mesh
    second.import_root(first.export_root(), now=NOW)
    books = Authority.load(first)
    books.revoke_node(GUEST, now=NOW + 1)
    books.unban(str(GUEST), now=NOW + 2)
    Authority.load(second).revoke_node(GUEST, now=NOW + 3)
    known = second.load_revocations(mesh)
    known.merge(first.load_revocations(mesh).entries())
    assert known.why_node_banned(GUEST)
