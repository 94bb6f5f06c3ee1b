"""What llama-server reports, line by line."""

from hypothesis import given
from hypothesis import strategies as st
from meshd.model.status import NetworkTensor
from meshd.role.head.load_report import MAX_KEPT, NodeWeights, WeightsReport, count_of


def test_tensors_are_counted_and_those_from_the_network_named() -> None:
    report = WeightsReport({"127.0.0.1:1": "anna"})
    report.line("tensor 127.0.0.1:1 local same 100 blk.0.attn_q.weight")
    report.line("tensor 127.0.0.1:1 network not_in_file 7 a name with spaces")
    report.line("tensor 10.0.0.9:5 network other_bytes 5 x")
    assert not report.done
    report.line("done")
    assert (report.local_bytes, report.network_bytes, report.done) == (100, 12, True)
    assert report.by_node == {"anna": NodeWeights(100, 7), "10.0.0.9:5": NodeWeights(0, 5)}
    assert report.from_network == (
        NetworkTensor("a name with spaces", 7, "anna", "not in file"),
        NetworkTensor("x", 5, "10.0.0.9:5", "other bytes"),
    )


def test_who_gets_hidden_states_in_f32_is_named() -> None:
    report = WeightsReport({"127.0.0.1:1": "anna"})
    for line in ("127.0.0.1:1 f16", "127.0.0.1:1 f32", "10.0.0.9:5 f32", "10.0.0.9:6 f32 more", "f32"):
        report.line(f"activations {line}")
    assert report.unrounded == ("anna", "10.0.0.9:5")


def test_what_was_asked_beyond_a_reservation_is_told() -> None:
    report = WeightsReport({"1": "bert"})
    report.line("exceeded 1 0 -1 5")
    report.line("exceeded 1 0 5")
    assert report.exceeded == ""
    report.line(f"exceeded 1 0 {1 << 30} {1 << 29}")
    assert report.exceeded.startswith(
        "llama-server needs 1.0 GiB on a device of bert, 512 MiB are reserved there; "
    )


def test_more_than_are_kept_by_name_are_counted_all_the_same() -> None:
    report = WeightsReport({})
    for number in range(MAX_KEPT + 3):
        report.line(f"tensor e network r 2 t{number}")
    assert len(report.from_network) == MAX_KEPT
    assert report.network_bytes == 2 * (MAX_KEPT + 3)


@given(
    st.lists(st.text(max_size=40) | st.from_regex(r"tensor e (local|network) r \S{1,5} x", fullmatch=True))
)
def test_any_line_is_understood_or_left_alone(lines: list[str]) -> None:
    report = WeightsReport({})
    for line in lines:
        report.line(line)
    assert report.local_bytes >= 0 and report.network_bytes >= 0


def test_only_plain_digits_are_a_count() -> None:
    assert [count_of(text) for text in ("0", "12", "9" * 19)] == [0, 12, int("9" * 19)]
    assert [count_of(text) for text in ("", "-1", "²", "٣", "1 ", "9" * 20, "9" * 5000)] == [None] * 7
