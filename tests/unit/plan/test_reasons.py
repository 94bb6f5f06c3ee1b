"""Each reason has its words, and they are here once: other tests compare reasons."""

from dataclasses import replace

import pytest
from meshd.model.cache import ContextShape
from meshd.model.status import AnswersAtOnce
from meshd.plan import reasons as r
from meshd.plan.reasons import brief, each_left_out, faster_in_words, in_words, why_idle

MIB, GIB = 1 << 20, 1 << 30
HERE, THERE, BOTH = (r.RatedSplit(nodes, 2.0) for nodes in (("head",), ("a",), ("head", "a")))
SLOWER = r.RatedSplit(("a", "b"), 3.0)
FASTER = r.RatedSplit(("head",), 1.32)
SHORTAGE = r.Shortage(
    "m",
    30,
    20 * GIB,
    GIB,
    ContextShape(8192),
    (
        r.MemoryUse(("head CPU",), 5 * GIB, 2 * GIB, GIB, takes_layers=True),
        r.MemoryUse(("head CPU", "a CPU"), 5 * GIB, 0, GIB, takes_layers=True),
        r.MemoryUse(("b CPU",), GIB, 0, 2 * GIB, takes_layers=True),
        r.MemoryUse(("c CPU",), GIB, 0, 3 * GIB, takes_layers=False),
        r.MemoryUse(("d CPU",), GIB, 0, 0, takes_layers=False),
    ),
)
ABSENCES: dict[r.Absence, str] = {
    r.Reported("it is odd"): "it is odd",
    r.NoFreeMemory(): "it has no free memory",
    r.SameMemory("b"): "b has the same memory, as both report",
    r.SameCard("b"): "b uses the same card, as both report",
    r.NotMeasured(): "it was not measured with layers like this model's",
    r.NotNeeded(): "the model is faster without it",
    r.NoRoom(-5, 3 * MIB): "0 MiB are left for layers; one layer needs 3 MiB",
    r.TooManyDevices(15): "llama.cpp supports at most 15 devices",
    r.TooFewLayers(2): "the model has only 2 layers",
    r.NoShare(by_user=True): "it has no share in the tensor split",
    r.NoShare(by_user=False): "it has no share in the plan",
}
REASONS: list[tuple[r.Reason, str]] = [
    (r.SplitComparison(HERE), "not split: it runs on `head` alone"),
    (r.SplitComparison(BOTH), "split over `head` → `a`: it fits on no single machine"),
    (
        r.SplitComparison(HERE, SLOWER),
        "not split: it runs on `head` alone, while `a` → `b` takes 1.50 times as long",
    ),
    (
        r.SplitComparison(BOTH, FASTER),
        "split over `head` → `a`, while `head` alone takes 0.66 times as long (too little gain for one more)",
    ),
    (
        r.SplitComparison(BOTH, FASTER, FASTER, 1),
        "split over `head` → `a`, while `head` alone takes 0.66 times as long, "
        "but `--min-workers 1` rules it out",
    ),
    (
        r.SplitComparison(BOTH, THERE, FASTER, 2),
        "split over `head` → `a`, while `a` alone takes 1.00 times as long, "
        "and `head` alone takes 0.66 times as long, but `--min-workers 2` rules it out",
    ),
    (r.ByMemory(), "layers by memory, not by speed: layers of this kind cannot be measured"),
    (
        r.ByMemory((("head CPU", r.NotMeasured()),)),
        "layers by memory, not by speed: `head CPU`: it was not measured with layers like this model's",
    ),
    (
        r.ByMemory((("a", r.Reported("busy")), ("b", r.Reported("odd"))), "it does not fit"),
        "layers by memory, not by speed: `a`: busy; `b`: odd; and without that: it does not fit",
    ),
    (
        r.ComparisonFailed("a comparison: ZeroDivisionError"),
        "layers by memory, as splits could not be compared (a comparison: ZeroDivisionError)",
    ),
    (r.ByTensors(("a", "b")), "each layer on `a` and `b`, as `--split tensor` says"),
    (r.ByTensors(("a", "b", "c")), "each layer on `a`, `b` and `c`, as `--split tensor` says"),
    (r.NotByTensors("`no_push` is set"), "by layers: `no_push` is set"),
    (
        r.TogetherByChoice(("a", "b"), 2000, 500, 40.04, 20.0, 51.2),
        "each layer on `a` and `b`: a prompt of 2000 tokens and an answer of 500 are predicted to take "
        "40.0 s, instead of 51.2 s by layers",
    ),
    (r.NotTogether("no cable"), "not by tensors: no cable"),
    (
        r.OtherWay(by_tensors=True),
        "the previous run was split by tensors; the arithmetic differs, so texts may continue differently",
    ),
    (
        r.OtherWay(by_tensors=False),
        "the previous run was split by layers; the arithmetic differs, so texts may continue differently",
    ),
    (r.Without("c", r.Reported("it computes")), "without `c`: it computes"),
    (r.AllOn("head"), "all layers on `head`"),
    (r.InProportion(), "layers in proportion to usable memory"),
    (r.AsGiven(by_user=True), "according to the tensor split"),
    (r.AsGiven(by_user=False), "according to the plan"),
    (r.HeadCpu.NOT_WANTED, "the head gets no layers (`--device none`)"),
    (r.HeadCpu.ALONE, "there is no other device"),
    (r.HeadCpu.AMONG_CPUS, "the head gets layers because all devices are CPUs"),
    (r.HeadCpu.BESIDE_GPUS, "the head's CPU gets no layers because there are GPUs"),
    (r.HeadCpu.GPUS_TOO_SMALL, "the head's CPU gets layers because the GPUs alone lack the memory"),
    (r.OutputOn("head CPU"), "output on head CPU"),
    (
        r.OutputOn("a CUDA0", 0.0030, 0.0005),
        "output on a CUDA0 (3.0 ms per token on the head, 0.5 ms on the worker, estimated)",
    ),
    (r.LeftOut("a", "CUDA0", r.NoFreeMemory()), "a CUDA0 left out: it has no free memory"),
    (r.UnknownArchitecture("x"), "architecture `x` is unknown: its cache size is an upper bound"),
    (r.MicroBatch(200, 0, 2, for_slots=True), "micro batches of 200 tokens: one for each slot"),
    (
        r.MicroBatch(512, 0, 2, at_once=True),
        "micro batches of 512 tokens: all workers compute each together",
    ),
    (r.MicroBatch(512, 1, 0), "micro batches of 512 tokens: one device computes"),
    (r.MicroBatch(512, 2, 0), "micro batches of 512 tokens: fastest for 2 GPUs in turn, estimated"),
    (r.MicroBatch(128, 0, 2), "micro batches of 128 tokens: fastest for 2 CPUs in turn, estimated"),
    (r.MicroBatch(256, 1, 2), "micro batches of 256 tokens: fastest for 3 CPUs and GPUs in turn, estimated"),
    (r.FullWindows(), "windows keep the whole context, so no checkpoints"),
    (r.Answers(AnswersAtOnce(4, 8192)), "4 requests at once, 8192 tokens each"),
    (
        r.Answers(AnswersAtOnce(1, 8192), lacks_memory=True),
        "1 request at once, 8192 tokens, limited by memory",
    ),
    (
        SHORTAGE,
        "`m` does not fit: it needs 21.0 GiB for its 30 layers "
        "(weights 20.0 GiB, cache of 8192 tokens 1.0 GiB); "
        "head CPU has 2.0 GiB for them (5.0 GiB free, less 2.0 GiB for weights beside the layers, "
        "up to 1.0 GiB for compute buffers); "
        "head CPU and a CPU have 4.0 GiB for them "
        "(5.0 GiB free, as one of them says, in the memory that they share, "
        "less up to 1.0 GiB for compute buffers); "
        "b CPU has nothing for them (1.0 GiB free, less up to 2.0 GiB for compute buffers); "
        "c CPU lacks 2.0 GiB even without them (1.0 GiB free, less up to 3.0 GiB for compute buffers)",
    ),
]
LAYERS = (("a", 10), ("b", 20))
CHANGES: list[tuple[r.Change, str]] = [
    (r.RunOn("head", is_head=True), "do not split: run it on this node alone"),
    (r.RunOn("a", is_head=False), "do not split: run it on `a` alone"),
    (r.Drop(("c", "d"), LAYERS), "drop `c` and `d` (layers: `a` 10, `b` 20)"),
    (r.Use(("b",), (), LAYERS), "use `b` (layers: `a` 10, `b` 20)"),
    (r.Use(("b",), ("c", "d"), LAYERS), "use `b` instead of `c` and `d` (layers: `a` 10, `b` 20)"),
    (r.Reorder(("a", "b"), LAYERS), "another order: `a` → `b` (layers: `a` 10, `b` 20)"),
    (r.Divide(LAYERS), "divide the layers differently: `a` 10, `b` 20"),
    (r.ComputeTogether(("a", "b"), all_workers=True), "each layer on `a` and `b` (`--split tensor`)"),
    (
        r.ComputeTogether(("a", "b"), all_workers=False),
        "each layer on `a` and `b` (`--split tensor --workers a,b`)",
    ),
    (r.LetHeadCompute("head"), "omit `--device none`, so that `head` also computes"),
    (
        r.OneAtOnce(r.RunOn("a", is_head=False)),
        "one request at a time (`-- -np 1`): do not split: run it on `a` alone",
    ),
    (r.HalfFloats(), "send activations as half floats (`--set serve.activations=f16`)"),
]


@pytest.mark.parametrize(("reason", "words"), [*REASONS, *ABSENCES.items(), *CHANGES])
def test_a_reason_has_its_words(reason: object, words: str) -> None:
    assert str(reason) == words


@pytest.mark.parametrize(
    ("closed", "worded"),
    [
        (r.Reason, {type(one) for one, _ in REASONS}),
        (r.Absence, {type(one) for one in ABSENCES}),
        (r.Change, {type(one) for one, _ in CHANGES}),
    ],
)
def test_no_kind_of_reason_is_missing_here(closed: object, worded: set[type]) -> None:
    assert set(getattr(closed, "__args__", ())) == worded


def test_reasons_follow_one_another() -> None:
    assert in_words((r.AllOn("a"), r.FullWindows())) == (
        "all layers on `a`; windows keep the whole context, so no checkpoints"
    )


UNABLE = r.LeftOut("b", "CPU", r.Reported("odd"))
UNUSED = r.LeftOut("c", "CPU", r.NoShare(by_user=False))


def test_in_short_are_the_first_reason_and_what_no_split_could_use() -> None:
    rest = (r.Without("d", r.Reported("busy")), r.AsGiven(by_user=False), UNUSED, UNABLE)
    chosen = (r.SplitComparison(HERE), *rest)
    assert brief(chosen) == "not split: it runs on `head` alone; without `d`: busy; b CPU left out: odd"
    assert brief((r.ByMemory(), *rest)) == in_words((r.ByMemory(),)), "that says what is missing"
    differs = r.OtherWay(by_tensors=True)
    for first in (r.ByMemory(), r.ComparisonFailed("odd")):
        assert brief((first, *rest, differs)) == in_words((first, differs)), "texts may go on differently"
    estimated = "not split: it runs on `head` alone (by estimates of a, b)"
    assert brief(chosen[:1], estimated={"b", "a"}) == estimated


def test_an_idle_worker_hears_why() -> None:
    left_out = (UNABLE, UNUSED, r.LeftOut("b", "GPU", r.NotNeeded()))
    assert why_idle(left_out, "b") == "b CPU: odd; b GPU: the model is faster without it"
    assert why_idle(left_out, "e") == "e: no layer was left for it"
    assert each_left_out((UNABLE, UNUSED)) == "b CPU: odd; c CPU: it has no share in the plan"


def test_an_advice_says_what_it_rests_on() -> None:
    comparison = r.SplitComparison(HERE, SLOWER)
    basis = r.AdviceBasis(comparison, True, 512, 256, drafts=False, estimated=False)
    answer = "a prompt of 512 tokens and 256 generated ones, with the best layers"
    slower = "`a` → `b` takes 1.50 times as long"
    assert str(basis) == f"not split: it runs on `head` alone, while {slower}; predicted for {answer}"
    other = replace(basis, runs=False)
    assert str(other) == f"meshd would run it on `head` alone, while {slower}; predicted for {answer}"
    split = replace(other, comparison=r.SplitComparison(BOTH))
    assert str(split).startswith("meshd would split it over `head` → `a`: it fits on no single machine; ")
    unsure = r.AdviceBasis(None, False, 512, 256, drafts=True, estimated=True)
    assert str(unsure) == (
        f"no split is faster; predicted without drafts for {answer}; "
        "some devices were never measured (`meshd capacity` does that while nothing is served)"
    )
    assert faster_in_words(SLOWER, 1.234) == "as measured, requests are 1.2 times as fast over `a` → `b`"
    changed = r.ChangedPart("head ↔ a", 0.1002, 0.0102)
    assert str(changed) == "`head ↔ a` takes 100.2 ms of a token (10.2 ms then)"
