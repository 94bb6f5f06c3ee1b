"""Which head answers a request: heads and `now` in, a choice out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.client.head_choice import (
    HEAD_AWAY_SECONDS,
    HeadOffer,
    HeadWish,
    KnownHead,
    choose_head,
    find_model,
    may_come,
    model_names,
    models_and_heads,
    told_fingerprint,
    why_none,
)
from meshd.identity.keys import PeerId
from meshd.model.status import ModelState
from meshd.wire.models import ApiModel, ServingTold

NOW = 1000.0
TINY = ApiModel("tiny", "ready", takes=True, slots=4, fingerprint=b"t" * 32)
BIG = ApiModel("big", "ready", takes=True, slots=1, fingerprint=b"b" * 32)
LOADING = ApiModel("tiny", "loading", takes=False, reason="40 %")


def head(name: str, *models: ApiModel, rtt: float | None = 0.01, **more: object) -> KnownHead:
    one = KnownHead(PeerId(name.encode().ljust(32)), name, ServingTold(models), rtt=rtt)
    return replace(one, **more)  # type: ignore[arg-type]  # fields of it


def chosen(*heads: KnownHead, wish: HeadWish | None = None, now: float = NOW) -> str:
    offer = choose_head(heads, wish or HeadWish("tiny"), now)
    return offer.head.name if offer is not None else ""


def busy(requests: int, slots: int = 4) -> ApiModel:
    return replace(TINY, requests=requests, slots=slots)


@pytest.mark.parametrize(
    ("heads", "name"),
    [
        ((), ""),
        ((head("a", LOADING),), ""),
        ((head("a", LOADING), head("b", TINY)), "b"),
        ((head("a", BIG), head("b", TINY)), "b"),
        # the least busy: requests for each slot
        ((head("a", busy(2)), head("b", busy(1))), "b"),
        ((head("a", busy(3, slots=8)), head("b", busy(1, slots=2))), "a"),
        # of this node's own requests it knows before the head tells them
        ((head("a", busy(0), mine=2), head("b", busy(1))), "b"),
        ((head("a", busy(3), mine=3), head("b", busy(2), mine=0)), "b"),
        # then the nearest, whose path is known
        ((head("a", TINY, rtt=0.2), head("b", TINY, rtt=0.1)), "b"),
        ((head("a", TINY, rtt=None), head("b", TINY, rtt=0.1)), "b"),
        ((head("a", busy(1), rtt=0.001), head("b", busy(0), rtt=0.2)), "b"),
        # ready before one that loads the model on demand, however busy
        ((head("a", replace(TINY, state="waiting")), head("b", busy(9))), "b"),
        ((head("a", replace(TINY, state="waiting")),), "a"),
        # trouble and lost connections come after all else
        ((head("a", TINY, avoided_until=NOW + 1), head("b", busy(9))), "b"),
        ((head("a", TINY, avoided_until=NOW), head("b", busy(9))), "a"),
        ((head("a", TINY, avoided_until=NOW + 1),), "a"),
        ((head("a", TINY, away_since=NOW - 1), head("b", busy(9))), "b"),
        ((head("a", TINY, away_since=NOW - 1),), "a"),
        ((head("a", TINY, away_since=NOW - HEAD_AWAY_SECONDS),), ""),
        # one that has said nothing
        ((head("a", serving=None), head("b", TINY)), "b"),
    ],
)
def test_the_choice(heads: tuple[KnownHead, ...], name: str) -> None:
    assert chosen(*heads) == name
    assert chosen(*reversed(heads)) == name


def test_equals_are_chosen_alike_in_any_order() -> None:
    one, two = head("a", TINY), head("b", TINY)
    assert chosen(one, two) == chosen(two, one) == "a"


def test_what_was_begun_goes_on_elsewhere_with_the_same_weights_alone() -> None:
    first, other = head("a", TINY), head("b", replace(TINY, fingerprint=b"o" * 32))
    wish = HeadWish("tiny", fingerprint=TINY.fingerprint, without=frozenset({first.peer}))
    assert chosen(first, other, wish=wish) == ""
    assert chosen(first, other, wish=replace(wish, fingerprint=b"")) == "b"
    assert chosen(first, other, head("c", TINY), wish=wish) == "c"


def test_a_model_is_meant_by_its_name_or_by_any_where_there_is_one() -> None:
    one, both = [head("a", TINY)], [head("a", TINY), head("b", BIG)]
    assert find_model(one, "gpt-4o", NOW) == find_model(one, "tiny", NOW) == "tiny"
    assert find_model(one, "", NOW) == find_model(both, "", NOW) == ""
    assert find_model(both, "big", NOW) == "big"
    assert find_model(both, "gpt-4o", NOW) is None
    assert find_model([], "gpt-4o", NOW) is None
    assert chosen(*both, wish=HeadWish("")) == "a"


def test_an_alias_means_the_model_of_those_heads_that_know_it() -> None:
    known, other = head("b", replace(BIG, aliases=("gpt-4o",))), head("a", TINY, BIG)
    assert find_model([known, other], "gpt-4o", NOW) == "gpt-4o"
    assert chosen(other, known, wish=HeadWish("gpt-4o")) == "b"
    assert model_names([known, other], NOW) == ["big", "tiny"]


def test_a_request_without_a_model_means_the_default_of_a_head() -> None:
    loading = head("a", LOADING, BIG)
    assert chosen(loading, wish=HeadWish("")) == "", "BIG would not be what answers"
    assert chosen(loading, wish=HeadWish("big")) == "a"


def test_a_head_that_has_the_model_loaded_comes_before_one_that_loads_it() -> None:
    unloaded, loading = (replace(TINY, state=state) for state in ("unloaded", "loading"))
    busy = head("c", replace(TINY, requests=9))
    assert chosen(head("a", unloaded), head("b", loading), busy) == "c"
    assert chosen(head("a", unloaded), head("b", replace(loading, requests=1))) == "b"
    assert chosen(head("a", unloaded)) == "a"


def test_weights_of_a_model_that_was_loaded_for_the_request_are_told_later() -> None:
    before = head("a", replace(TINY, state="unloaded", fingerprint=b""), BIG)
    offer = choose_head([before], HeadWish("tiny"), NOW)
    assert offer is not None and told_fingerprint([before], offer) == b""
    assert told_fingerprint([head("b", BIG), head("a", TINY, BIG)], offer) == TINY.fingerprint
    assert told_fingerprint([], offer) == b""


def test_the_list_has_each_model_that_takes_requests_once() -> None:
    heads = [head("a", TINY, BIG), head("b", BIG), head("c", LOADING), head("d", serving=None)]
    assert model_names(heads, NOW) == ["big", "tiny"]
    assert models_and_heads(heads, NOW) == ["big on a and b", "tiny on a"]
    assert model_names([head("c", LOADING)], NOW) == []
    assert model_names([head("a", TINY, away_since=0.0)], NOW) == []


def test_where_nobody_answers_it_is_said_why() -> None:
    assert "run `meshd serve`" in why_none([], HeadWish(), NOW)[1]
    state, why = why_none([head("a", LOADING), head("b", serving=None, why_not="no role")], HeadWish(), NOW)
    assert state is ModelState.LOADING
    assert why == "`tiny` on `a` is loading: 40 %; `b`: no role"
    assert why_none([head("a", TINY, away_since=0.0)], HeadWish(), NOW) == (
        ModelState.WAITING,
        "the connection to `a` is lost",
    )
    failed = head("a", replace(LOADING, state="failed", reason="too large"))
    assert why_none([failed], HeadWish(), NOW)[0] is ModelState.FAILED
    assert why_none([head("a")], HeadWish(), NOW) == (ModelState.WAITING, "`a` serves nothing")


def test_what_heads_say_fills_no_page() -> None:
    many = head("a", *(replace(LOADING, name=str(number)) for number in range(32)))
    why = why_none([many, many], HeadWish(), NOW)[1]
    assert why.count("; ") == 8 and why.endswith("; and 56 more")


def test_a_head_that_loads_the_model_is_worth_waiting_for() -> None:
    wish = HeadWish("tiny", without=frozenset({head("a").peer}))
    assert not may_come([head("a", TINY)], wish, NOW)
    assert may_come([head("a", TINY), head("b", LOADING)], wish, NOW)
    assert not may_come([head("b", replace(LOADING, state="failed"))], wish, NOW)
    assert not may_come([head("b", BIG)], wish, NOW)


models = st.builds(
    ApiModel,
    name=st.sampled_from(["tiny", "big"]),
    state=st.sampled_from([*ModelState, "of a later version"]),
    takes=st.booleans(),
    requests=st.integers(0, 65535),
    slots=st.integers(1, 65535),
    fingerprint=st.sampled_from([b"", b"t" * 32, b"b" * 32]),
)
heads_of_any_kind = st.lists(
    st.builds(
        KnownHead,
        peer=st.binary(min_size=32, max_size=32).map(PeerId),
        name=st.sampled_from("abc"),
        serving=st.none() | st.builds(ServingTold, st.lists(models, max_size=3).map(tuple)),
        away_since=st.none() | st.floats(0, NOW),
        rtt=st.none() | st.floats(0, 60),
        mine=st.integers(0, 100),
        avoided_until=st.floats(0, 2 * NOW),
    ),
    max_size=6,
)
wishes = st.builds(
    HeadWish, st.sampled_from(["", "tiny", "big"]), st.sampled_from([b"", b"t" * 32]), st.just(frozenset())
)


@given(heads_of_any_kind, wishes)
def test_a_choice_fits_and_is_the_best(heads: list[KnownHead], wish: HeadWish) -> None:
    offer = choose_head(heads, wish, NOW)
    fit = [
        (one, model)
        for one in heads
        for model in (one.serving.models if one.serving is not None else ())
        if model.takes
        and (wish.model == model.name or (not wish.model and HeadOffer(one, model).is_default))
        and wish.fingerprint in (b"", model.fingerprint)
        and not one.is_away(NOW)
    ]
    assert (offer is None) == (not fit)
    if offer is None:
        assert why_none(heads, wish, NOW)[1]
        return
    assert (offer.head, offer.model) in fit
    if offer.head.away_since is not None:
        assert all(one.away_since is not None for one, _ in fit)
    alike = [
        (one, model)
        for one, model in fit
        if (one.away_since is None, one.avoided_until > NOW, HeadOffer(one, model).steps_to_ready)
        == (offer.head.away_since is None, offer.head.avoided_until > NOW, offer.steps_to_ready)
    ]
    assert all(offer.load <= max(model.requests, one.mine) / model.slots for one, model in alike)


def test_a_banned_node_does_not_wait() -> None:
    """Its key never comes back: the state says so, and what to do."""
    judge = head("judge", serving=None, says_banned="node `abc` is banned from this mesh")
    state, why = why_none([judge, head("a", TINY, away_since=0.0)], HeadWish(), NOW)
    assert state is ModelState.FAILED
    assert why.startswith("this node is banned, according to `judge`: node `abc` is banned")
    assert "meshd leave --new-identity" in why
    assert why_none([judge, head("b", LOADING)], HeadWish(), NOW)[0] is ModelState.LOADING, "one lets it in"
