"""What people read of a load, of answers at once, and of a fetch: shares, times and their words."""

import pytest
from meshd.model.status import AnswersAtOnce, FetchStatus, WorkerWeights

GB = 10**9


@pytest.mark.parametrize(
    ("local", "sent", "total", "share"),
    [(0, 0, 8, 0.0), (2, 0, 8, 0.25), (2, 2, 8, 0.5), (4, 4, 8, 1.0), (8, 4, 8, 1.0), (0, 0, 0, 0.0)],
)
def test_a_workers_share_is_what_it_has_of_all(local: int, sent: int, total: int, share: float) -> None:
    assert WorkerWeights("attic", total, local, total - local, sent).share == share


def test_a_workers_weights_say_what_comes_over_the_network() -> None:
    assert WorkerWeights("attic", 8 * GB, 8 * GB, 0, 0).text == "attic 8.0 GB of 8.0 GB"
    text = WorkerWeights("attic", 8 * GB, 2 * GB, 6 * GB, 3 * GB).text
    assert text == "attic 5.0 GB of 8.0 GB (3.0 GB over the network)"


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        (AnswersAtOnce(1, 8192), "1 request at once, 8192 tokens"),
        (AnswersAtOnce(1, 8192, shared=True), "1 request at once, 8192 tokens"),
        (AnswersAtOnce(2, 4096), "2 requests at once, 4096 tokens each"),
        (AnswersAtOnce(2, 4096, shared=True), "2 requests at once that share 4096 tokens"),
    ],
)
def test_answers_at_once_in_words(answers: AnswersAtOnce, text: str) -> None:
    assert answers.text == text


def fetch(done: int, total: int, rate: float) -> FetchStatus:
    return FetchStatus(
        name="m", step="fetching", activity="copying", done_bytes=done, total_bytes=total, bytes_s=rate
    )


@pytest.mark.parametrize(
    ("status", "share", "left", "text"),
    [
        (fetch(0, 0, 0), None, None, "copying"),
        (fetch(0, 8 * GB, 0), 0.0, None, "copying: 0 B of 8.0 GB"),
        (
            fetch(2 * GB, 8 * GB, GB / 10),
            0.25,
            60.0,
            "copying: 2.0 GB of 8.0 GB, 100.0 MB/s, 60 s left",
        ),
        (fetch(8 * GB, 8 * GB, GB / 10), 1.0, None, "copying: 8.0 GB of 8.0 GB"),
        (fetch(0, 8 * GB, 0.5), 0.0, 16 * GB, None),
    ],
)
def test_a_fetch_tells_its_share_and_the_time_that_is_left(
    status: FetchStatus, share: float | None, left: float | None, text: str | None
) -> None:
    assert (status.share, status.seconds_left) == (share, left)
    assert status.text == text or text is None
