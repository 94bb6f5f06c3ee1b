"""Test how many answers at once a plan has room for, each with a context of its own."""

from dataclasses import replace

import pytest
from meshd.base.errors import UserError
from meshd.model.cache import LayerCache
from meshd.model.layers import ModelLayers
from meshd.model.output import DevicePath
from meshd.model.status import AnswersAtOnce
from meshd.plan.over_offers import answers_at_once
from meshd.plan.reasons import Answers
from meshd.plan.split import NotEnoughMemory, Plan
from meshd.plan.wishes import HeadOptions, read_llama_args

from tests.unit.plan.offers_scene import cpu, gpu, make_plan, model, node_offer
from tests.unit.plan.plain_options import PLAIN

TRAINED = 4096
USUAL = replace(PLAIN, devices=("none",), slots=4)
MIB = 1 << 20

WHOLE = LayerCache(key=4096, value=4096)  # 64 MiB for 4096 tokens
WINDOWED = replace(WHOLE, window=1024)  # 16 MiB for each answer's window, 8 for a step
RECURRENT = LayerCache(state=16 * MIB)  # 64 MiB for each answer


def keeping(*layers: LayerCache) -> ModelLayers:
    """Return a model of eight layers, these by turns."""
    tiny = model()
    kept = (layers * tiny.count)[: tiny.count]
    return replace(tiny, cache=replace(tiny.cache, layers=kept))


def plan(of: ModelLayers, free: float, *llama_args: str, options: HeadOptions = USUAL) -> Plan:
    """On a worker with so much memory, in GiB."""
    options = replace(options, llama_args=llama_args)
    return make_plan(of, offers=[node_offer("a", cpu(free))], options=options)


def slots_and_tokens(*llama_args: str, ctx_size: int | None = None) -> tuple[int, int, bool]:
    options = replace(USUAL, ctx_size=ctx_size)
    shape = plan(model(), 4, *llama_args, options=options).shape
    said = answers_at_once(shape, TRAINED)
    return said.slots, said.tokens, said.shared


@pytest.mark.parametrize(
    ("llama_args", "expected"),
    [
        ("", (4, TRAINED, False)),
        ("-np 2", (2, TRAINED, False)),
        ("-np 1", (1, TRAINED, False)),
        ("-c 2048", (4, 2048, False)),
        ("-c 0", (4, TRAINED, False)),
        ("-c 1536 -np 3", (3, 512, False)),
        ("-c 1000 -np 3", (3, 512, False)),
        ("-c 1000", (4, 1024, False)),
        ("-kvu", (4, TRAINED, True)),
        ("-c 2048 -np 8 -kvu", (8, 2048, True)),
        ("-no-kvu", (4, TRAINED, False)),
        ("-c 2048 -np 2 -no-kvu", (2, 1024, False)),
    ],
)
def test_each_answer_has_the_context_that_is_asked_for(
    llama_args: str, expected: tuple[int, int, bool]
) -> None:
    """Unless the user says it in llama.cpp's way: `-kvu` shares, `-c` with `-np` divides."""
    assert slots_and_tokens(*llama_args.split()) == expected


def test_llama_server_gives_no_more_than_the_model_was_trained_for() -> None:
    assert slots_and_tokens(ctx_size=512) == (4, 512, False)
    assert slots_and_tokens(ctx_size=3 * TRAINED) == (4, TRAINED, False)


def test_the_plan_says_why_a_context_is_shorter_than_asked_for() -> None:
    made = plan(model(), 4, options=replace(USUAL, ctx_size=100_000))
    assert made.answers is not None
    assert (made.answers.tokens, made.shape.cells) == (TRAINED, TRAINED)
    assert made.answers.note.startswith(f"context shortened from 100000 to {TRAINED} tokens")
    within = plan(model(), 4, options=replace(USUAL, ctx_size=2048))
    assert within.answers is not None
    assert within.answers.note == ""


def test_no_longer_context_than_the_model_allows_is_advised() -> None:
    with pytest.raises(NotEnoughMemory) as caught:
        plan(keeping(WHOLE), 0.2, options=replace(USUAL, ctx_size=16_000_000))
    assert 0 < caught.value.largest_context < TRAINED


def test_all_of_them_fit_into_the_context_and_none_takes_of_another() -> None:
    for given, option in (("", "-c 16384 -np 4"), ("-c 1000 -np 3", "-c 1536 -np 3"), ("-np 1", "-np 1")):
        shape = plan(model(), 4, *given.split()).shape
        assert shape.parallel * shape.cells <= shape.tokens
        assert option in " ".join(plan(model(), 4, *given.split()).arguments)
        assert "-kvu" not in plan(model(), 4, *given.split()).arguments
    assert "-kvu" in plan(model(), 4, "-kvu").arguments
    with pytest.raises(UserError) as caught:
        read_llama_args(["--kv-unified-per-slot", "9999"])
    assert "--ctx-size" in caught.value.hint


@pytest.mark.parametrize(
    ("of", "words", "each"),
    [
        (keeping(WHOLE), (), 64),
        (keeping(WINDOWED), ("-ctxcp", "4"), 24),
        (keeping(WINDOWED), (), 64),  # the whole context, where there is room for it
        (keeping(RECURRENT), (), 64),
    ],
)
def test_the_cache_of_each_counts(of: ModelLayers, words: tuple[str, ...], each: int) -> None:
    for slots in range(1, 5):
        made = plan(of, 4, "-np", str(slots), *words)
        assert sum(share.cache for share in made.shares) == of.count * slots * each * MIB


@pytest.mark.parametrize("layers", [(WHOLE,), (WINDOWED,), (RECURRENT,), (WHOLE, RECURRENT)])
def test_as_many_as_the_memory_has_room_for(layers: tuple[LayerCache, ...]) -> None:
    of, options = keeping(*layers), USUAL
    found: list[int] = []
    for sixteenths in range(1, 40):
        free = sixteenths / 16
        try:
            made = plan(of, free, options=options)
        except NotEnoughMemory:
            assert not found
            continue
        slots = made.shape.parallel
        assert Answers(AnswersAtOnce(slots, TRAINED), lacks_memory=slots < 4) in made.reasons
        assert plan(of, free, "-np", str(slots), options=options).shape == made.shape
        if slots < 4:
            with pytest.raises(NotEnoughMemory):
                plan(of, free, "-np", str(slots + 1), options=options)
        found.append(slots)
    assert found == sorted(found)
    assert set(found) == {1, 2, 3, 4}


def test_too_many_are_refused_with_what_fits() -> None:
    with pytest.raises(NotEnoughMemory) as caught:
        plan(keeping(WHOLE), 1.5, "-np", "4")
    assert "cache of 4 x 4096 tokens" in caught.value.what
    assert "for 4 requests at once" in caught.value.hint
    largest = caught.value.largest_context
    assert 0 < largest < TRAINED
    fits = replace(USUAL, ctx_size=largest)
    assert plan(keeping(WHOLE), 1.5, "-np", "4", options=fits).shape.cells == largest
    with pytest.raises(NotEnoughMemory):
        plan(keeping(WHOLE), 1.5, "-np", "4", options=replace(USUAL, ctx_size=largest + 256))


def test_more_answers_bring_no_slower_device_in() -> None:
    """A GPU that has room for one, beside a head with a CPU and plenty of memory."""
    options = replace(PLAIN, slots=4)
    offers = [node_offer("a", gpu(0.9))]
    made = make_plan(keeping(WHOLE), offers=offers, own=[cpu(64)], options=options)
    assert [share.device.label for share in made.shares if share.layers] == ["a CUDA0"]
    assert made.shape.parallel == 1
    asked = replace(options, llama_args=("-np", "4"))
    more = make_plan(keeping(WHOLE), offers=offers, own=[cpu(64)], options=asked)
    assert more.shares[0].layers > 0


def test_more_answers_take_the_output_off_no_worker() -> None:
    wordy = replace(keeping(WHOLE), output=200 * MIB)
    wordy = replace(wordy, widths=replace(wordy.widths, vocabulary=100_000))
    found = set()
    for sixteenths in range(8, 50):
        offers = [replace(node_offer("a", gpu(sixteenths / 16)), path=DevicePath(0.05))]
        try:
            made, one = (
                make_plan(wordy, offers=offers, options=given)
                for given in (USUAL, replace(USUAL, llama_args=("-np", "1")))
            )
        except NotEnoughMemory:
            continue
        assert made.output_worker == one.output_worker
        found.add((made.shape.parallel, made.output_worker is not None))
    assert {(slots, True) for slots in range(1, 5)} <= found


def test_a_person_reads_what_there_is() -> None:
    assert AnswersAtOnce(1, 8192).text == "1 request at once, 8192 tokens"
    assert AnswersAtOnce(4, 8192).text == "4 requests at once, 8192 tokens each"
    assert AnswersAtOnce(4, 8192, shared=True).text == "4 requests at once that share 8192 tokens"
