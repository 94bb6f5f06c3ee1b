"""What is known of a load: tensors one by one, and what llama-server reports."""

from hypothesis import given
from hypothesis import strategies as st
from meshd.head.lease import MAX_KEPT, NodeWeights, WeightsReport
from meshd.model.status import NetworkTensor


def test_tensors_are_counted_and_those_from_the_network_named() -> None:
    report = WeightsReport({"127.0.0.1:1": "anna"})
    report.placed("127.0.0.1:1", "blk.0.attn_q.weight", 100, "")
    report.placed("127.0.0.1:1", "a name with spaces", 7, "not_in_file")
    report.placed("10.0.0.9:5", "x", 5, "other_bytes")
    assert (report.local_bytes, report.network_bytes) == (100, 12)
    assert report.by_node == {"anna": NodeWeights(100, 7), "10.0.0.9:5": NodeWeights(0, 5)}
    assert report.from_network == (
        NetworkTensor("a name with spaces", 7, "anna", "not in file"),
        NetworkTensor("x", 5, "10.0.0.9:5", "other bytes"),
    )


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
        report.placed("e", f"t{number}", 2, "r")
    assert len(report.from_network) == MAX_KEPT
    assert report.network_bytes == 2 * (MAX_KEPT + 3)


@given(st.lists(st.text(max_size=40) | st.from_regex(r"exceeded \S{1,5} 0 \S{1,5} \S{1,5}", fullmatch=True)))
def test_any_line_is_understood_or_left_alone(lines: list[str]) -> None:
    report = WeightsReport({})
    for line in lines:
        report.line(line)
    assert not report.exceeded or any(line.startswith("exceeded ") for line in lines)
