"""A whole id or a short one means its key, whatever nodes call themselves; labels are never shared."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from meshd.config.tree import host_name
from meshd.identity import naming
from meshd.identity.keys import PeerId

BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
ids = st.binary(min_size=32, max_size=32).map(lambda raw: str(PeerId(raw)))
plain_names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
short_names = st.text(BASE32, min_size=1, max_size=9)


@st.composite
def meshes(draw: st.DrawFn) -> tuple[dict[str, str], str]:
    """Names of the nodes of a mesh as they are shown, by id, and the id of one; the others know it."""
    members = draw(st.lists(ids, min_size=2, max_size=6, unique=True))
    victim = members[0]
    outside = draw(ids)
    taken = st.sampled_from([*members, outside]).flatmap(
        lambda node: st.integers(1, naming.ID_CHARS).map(lambda size: node[:size])
    )
    names = st.one_of(taken, taken.map(str.upper), plain_names, short_names, st.text(max_size=20))
    return {node: naming.shown(draw(names)) for node in members}, victim


@given(meshes())
def test_a_whole_id_means_that_key_alone(mesh: tuple[dict[str, str], str]) -> None:
    names, victim = mesh
    for text in (victim, victim.upper(), f" {victim}\n"):
        assert naming.meant(text, names) == [victim]
    del names[victim]
    assert naming.meant(victim, names) == [], "nobody else takes the place of one that is not known"


@given(meshes(), st.integers(naming.SHORT_CHARS, naming.ID_CHARS))
def test_ten_characters_of_an_id_mean_ids_alone(mesh: tuple[dict[str, str], str], size: int) -> None:
    names, victim = mesh
    text = victim[:size]
    assert naming.meant(text, names) == [node for node in names if node.startswith(text)]
    del names[victim]
    assert not any(text == name for name in names.values())
    assert all(node.startswith(text) for node in naming.meant(text, names))


@given(meshes(), st.integers(naming.LEAST_CHARS, naming.SHORT_CHARS - 1))
def test_fewer_characters_that_one_id_begins_with_never_mean_another_node(
    mesh: tuple[dict[str, str], str], size: int
) -> None:
    names, victim = mesh
    found = naming.meant(victim[:size], names)
    assert victim in found, "so that another one makes it ambiguous, and none is taken"


@given(meshes())
def test_what_is_shown_with_a_question_mark_means_nobody(mesh: tuple[dict[str, str], str]) -> None:
    names, _ = mesh
    for name in names.values():
        if name.startswith(naming.UNNAMED):
            assert naming.meant(name, names) == []


@given(ids, st.lists(ids, max_size=4), st.integers(naming.LEAST_CHARS, 9), st.booleans())
def test_the_beginning_of_another_id_is_shown_as_no_name(
    victim: str, others: list[str], size: int, upper: bool
) -> None:
    impostor, *rest = others or [str(PeerId(bytes(32)))]
    assume(impostor != victim)
    name = victim[:size].upper() if upper else victim[:size]
    known = sorted({victim, impostor, *rest})
    assert naming.shown_among(name, impostor, known) == f"?{name}"
    alone = [node for node in known if node == victim or not node.startswith(victim[:size])]
    assert naming.shown_among(name, victim, alone) == name, "its own beginning is no other's"


@given(st.text(max_size=80))
def test_what_is_shown_is_harmless(name: str) -> None:
    shown = naming.shown(name)
    assert 0 < len(shown) <= naming.MAX_NAME_CHARS
    assert shown.isascii()
    assert shown.isprintable()
    assert not set(shown) & set(" \t\\`'\"()[]{}<>|;&$")
    assert shown == name if naming.is_name(name) else shown.startswith("?")
    assert not naming.looks_like_id(shown)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("garage", "garage"),
        ("gpu-box.lan", "gpu-box.lan"),
        ("raspberrypi-1", "raspberrypi-1"),
        ("raspberrypi", "?raspberrypi"),
        ("", "?"),
        ("?garage", "??garage"),
        ("garage\u00a0", "?garage?"),
        ("gar\u200bage", "?gar?age"),
        ("g\u0430rage", "?g?rage"),
        ("\x1b[2Jgarage", "???2Jgarage"),
        ("-garage", "?-garage"),
        ("a" * 80, "?" + "a" * 62),
    ],
)
def test_names_as_they_are_shown(name: str, shown: str) -> None:
    assert naming.shown(name) == shown


def test_two_nodes_of_one_name_are_both_found() -> None:
    one, other = str(PeerId(b"a" * 32)), str(PeerId(b"b" * 32))
    assert naming.meant("garage", {one: "garage", other: "garage"}) == [one, other]
    assert naming.meant("garage", {one: "garage", other: "?garage"}) == [one]


def test_names_that_several_nodes_have() -> None:
    one, other, third = sorted(str(PeerId(bytes([n]) * 32)) for n in (1, 2, 3))
    assert naming.shared({other: "w", third: "x", one: "w"}) == {"w": [one, other]}
    assert naming.shared({one: "?w", other: "?w", third: "", "": ""}) == {}


@given(st.dictionaries(ids, st.one_of(plain_names, st.text(max_size=12)), max_size=6), st.sets(plain_names))
def test_every_label_is_another_one(names: dict[str, str], taken: set[str]) -> None:
    found = naming.labels(names, taken)
    assert found.keys() == names.keys()
    assert len({*found.values(), *taken}) == len(found) + len(taken)


def test_a_name_that_was_made_to_look_like_a_label_is_none() -> None:
    one, other, third = (str(PeerId(bytes([n]) * 32)) for n in (1, 2, 3))
    names = {one: "w", other: "w", third: f"w-{one[:4]}"}
    assert naming.labels(names, ["head"]) == {
        one: f"w ({one[:10]})",
        other: f"w ({other[:10]})",
        third: f"w-{one[:4]}",
    }
    named_alike = {one: "w", other: "w", third: f"w ({one[:10]})"}
    assert len(set(naming.labels(named_alike).values())) == 3
    assert naming.labels({one: "head"}, ["head"]) == {one: f"head ({one[:10]})"}


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("garage.example.org", "garage"),
        ("raspberrypi", "raspberrypi-1"),
        ("Workstation2", "Workstation2-1"),
        ("a" * 64, "a" * 61 + "-1"),
        ("-_box", "box"),
        ("...", "node"),
        ("bücher", "b-cher"),
    ],
)
def test_a_host_gives_a_name_that_a_node_may_have(
    monkeypatch: pytest.MonkeyPatch, host: str, name: str
) -> None:
    class Uname:
        nodename = host

    monkeypatch.setattr("os.uname", Uname)
    assert host_name() == name
    assert naming.is_name(name)
