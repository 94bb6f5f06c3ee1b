"""Test that the hostile member can say all there is to say: derived from the wire, and shown to be so."""

import dataclasses
import random

import pytest
from meshd.wire import address, dialable, igd, portmap, versions

from tests.hostile.draw import Draw, Pool, drawn_seed
from tests.hostile.words import UNSAYABLE, Speech, Word, catalogue, parts, wire_types

# Dataclasses that no member sends: read from a router or a web server (tests/fuzz/routers.py), or made here.
NOT_SAID = {
    address.ScopedCandidate: "an address for this machine alone",
    igd.HttpReply: "a router's answer",
    igd.IgdControl: "from a router's description",
    portmap.Granted: "a router's answer",
    portmap.Outside: "a router's answer",
    versions.Difference: "made by comparing",
    dialable.Here: "what a node knows of itself",
    versions.NodeVersion: "what a hint is made of",
}
WORDS = catalogue()


def test_every_type_of_the_wire_is_a_message_or_a_part_of_one() -> None:
    said = {word.kind for word in WORDS}
    inside = set().union(*(parts(word.kind) for word in WORDS))
    left = [kind for kind in wire_types() if kind not in said and kind not in inside]
    assert set(left) == set(NOT_SAID)


def test_a_new_type_without_a_way_to_say_it_is_noticed() -> None:
    @dataclasses.dataclass(frozen=True)
    class Fresh:
        number: int

    assert Fresh not in {word.kind for word in WORDS}
    assert Fresh not in set().union(*(parts(word.kind) for word in WORDS))


@pytest.mark.parametrize("word", WORDS, ids=[word.name for word in WORDS])
def test_each_is_said_well_and_badly(word: Word) -> None:
    rng = random.Random(drawn_seed())
    speech = Speech(rng, Draw(rng, Pool()), [word])
    taken = refused = 0
    for _ in range(300):  # of each a third is good, and a tenth at least refused: both are sure
        data = speech.say(word.name)
        try:
            if word.decode is not None:
                word.decode(data)
            taken += 1
        except UNSAYABLE:
            refused += 1
    assert taken, "nothing of it would get behind the door"
    assert refused or word.decode is None or not dataclasses.fields(word.kind), "nothing of it was hostile"


def test_good_ones_are_searched_for_when_they_are_first_said() -> None:
    """The search takes most of the time of a short run, which says few of all words."""
    rng = random.Random(drawn_seed())
    speech = Speech(rng, Draw(rng, Pool()))
    assert not speech._good
    speech.say("lease.Acquire")
    speech.say("lease.Acquire")
    assert set(speech._good) == {"lease.Acquire"}
