"""Members help each other: two that nothing connects meet through a third that both reach."""

from pathlib import Path

from tests.netns.agent import Settings, agent
from tests.netns.nat import Nat
from tests.netns.world import World


def test_two_behind_random_nats_meet_through_a_public_member(world: World, tmp_path: Path) -> None:
    """No relay and no STUN server: the founder passes their bytes on, which only the two can read."""
    founder = world.public("founder")
    homes = [world.router(label, Nat.SYMMETRIC_RANDOM).host("host") for label in ("one", "two")]
    with agent(founder.space, tmp_path / "founder", Settings(name="founder")) as far:
        one = Settings(name="one", join=far.token)
        two = Settings(name="two", join=far.token)
        with (
            agent(homes[0].space, tmp_path / "one", one) as first,
            agent(homes[1].space, tmp_path / "two", two) as second,
        ):
            first.connected(count=2)
            second.connected(count=2)
            [relayed] = [peer for peer in first.peers() if peer["name"] == "two"]
            links = relayed["links"]
            assert isinstance(links, list)
            assert {(link["kind"], link["path"]) for link in links} == {("relay", "relayed")}
            assert all(str(link["remote"]).startswith("member ") for link in links)
