"""Requests for several answers as several requests."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.answer_parts import (
    GROUP_BYTES,
    GROUP_INPUTS,
    PartsError,
    joined_answer,
    split_request,
)
from meshd.gateway.dialects.fields import Endpoint, count_answers, encoded_in_pieces


def split(asked: dict[str, object], endpoint: Endpoint) -> list[dict[str, object]]:
    """The bodies of all parts; of one that has none its own."""
    parts = split_request(asked, endpoint)
    return [json.loads(parts.body(at)) for at in range(len(parts))] if parts else [asked]


@pytest.mark.parametrize(
    ("endpoint", "asked", "parts"),
    [
        (Endpoint.COMPLETION, {"prompt": "a", "n": 1}, [{"prompt": "a", "n": 1}]),
        (Endpoint.COMPLETION, {"prompt": [1, 2]}, [{"prompt": [1, 2]}]),
        (
            Endpoint.COMPLETION,
            {"prompt": ["a", [1, 2]], "seed": 5},
            [{"prompt": "a", "seed": 5}, {"prompt": [1, 2], "seed": 5}],
        ),
        (Endpoint.CHAT, {"messages": [], "n": 2}, [{"messages": []}] * 2),
        (Endpoint.CHAT, {"n": 2, "seed": 5}, [{"seed": 5}, {"seed": 6}]),
        (
            Endpoint.COMPLETION,
            {"prompt": ["a", "b"], "n_cmpl": 2},
            [{"prompt": "a"}] * 2 + [{"prompt": "b"}] * 2,
        ),
    ],
)
def test_each_prompt_and_each_choice_is_a_request(
    endpoint: Endpoint, asked: dict[str, object], parts: list[dict[str, object]]
) -> None:
    assert split(asked, endpoint) == parts
    assert count_answers(asked, endpoint) == len(parts)


LONG = "x" * (GROUP_BYTES // 2 + 1)


@pytest.mark.parametrize(
    ("inputs", "groups"),
    [
        (["a", [1, 2]], [["a", [1, 2]]]),
        (["a"] * 20, [["a"] * GROUP_INPUTS, ["a"] * 4]),
        (["a", LONG, LONG, "b"], [["a", LONG], [LONG, "b"]]),
        (["a", LONG * 9, "b"], [["a"], [LONG * 9], ["b"]]),
        ([{"prompt_string": LONG}] * 2, [[{"prompt_string": LONG}]] * 2),
    ],
)
def test_inputs_of_embeddings_and_documents_are_sent_in_groups(
    inputs: list[object], groups: list[list[object]]
) -> None:
    asked: dict[str, object] = {"input": inputs}
    assert split(asked, Endpoint.EMBEDDINGS) == [{"input": group} for group in groups]
    assert count_answers(asked, Endpoint.EMBEDDINGS) == len(inputs)
    ranked = {"query": "q", "documents": inputs, "top_n": 1}
    documents: list[dict[str, object]] = [{"query": "q", "documents": group} for group in groups]
    assert split(ranked, Endpoint.RERANK) == (documents if len(groups) > 1 else [ranked])


@given(st.lists(st.text(max_size=20) | st.just(LONG) | st.just(LONG * 3), min_size=2, max_size=60))
def test_groups_are_bounded_and_keep_the_order(inputs: list[str]) -> None:
    parts = split({"input": inputs}, Endpoint.EMBEDDINGS)
    groups = [part["input"] for part in parts]
    flat: list[str] = []
    for group in groups:
        assert isinstance(group, list) and 1 <= len(group) <= GROUP_INPUTS
        assert len(group) == 1 or sum(map(len, group)) <= GROUP_BYTES
        flat += group
    assert flat == inputs


def joined(asked: dict[str, object], endpoint: Endpoint, *answers: object) -> object:
    parts = split_request(asked, endpoint)
    assert parts is not None
    return joined_answer(parts, [json.dumps(one).encode() for one in answers])


def completion(text: str, prompt: int, tokens: int) -> dict[str, object]:
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
    return {"id": text, "choices": [{"index": 0, "text": text}], "usage": usage, "timings": {}}


def test_choices_are_numbered_and_each_token_counts_once() -> None:
    asked: dict[str, object] = {"prompt": ["a", "b"], "n": 2}
    answers = [completion(*one) for one in (("w", 3, 10), ("x", 3, 20), ("y", 5, 30), ("z", 5, 40))]
    assert joined(asked, Endpoint.COMPLETION, *answers) == {
        "id": "w",
        "choices": [{"index": at, "text": text} for at, text in enumerate("wxyz")],
        "usage": {"prompt_tokens": 8, "completion_tokens": 100, "total_tokens": 108},
    }


def test_llama_cpp_has_a_list() -> None:
    answers = [{"index": 0, "content": "x", "tokens_predicted": 3}, {"index": 0, "content": "y"}]
    assert joined({"prompt": ["a", "b"]}, Endpoint.COMPLETION, *answers) == [
        {"index": 0, "content": "x", "tokens_predicted": 3},
        {"index": 1, "content": "y"},
    ]


def test_embeddings_in_both_forms() -> None:
    asked: dict[str, object] = {"input": ["a"] * (GROUP_INPUTS + 1)}
    usage = {"prompt_tokens": 2, "total_tokens": 2}
    first = [{"index": at, "embedding": [at]} for at in range(GROUP_INPUTS)]
    last = [{"index": 0, "embedding": [99]}]
    openai = [{"object": "list", "data": data, "usage": usage} for data in (first, last)]
    data = [*first, {"index": GROUP_INPUTS, "embedding": [99]}]
    assert joined(asked, Endpoint.EMBEDDINGS, *openai) == {
        "object": "list",
        "data": data,
        "usage": {"prompt_tokens": 4, "total_tokens": 4},
    }
    assert joined(asked, Endpoint.EMBEDDINGS, first, last) == data


def test_documents_are_ranked_together() -> None:
    documents = ["a", LONG * 2, "b", "c"]  # three groups
    asked: dict[str, object] = {"query": "q", "documents": documents, "top_n": 3}
    usage = {"prompt_tokens": 2, "total_tokens": 2}
    scores = ([(0, 0.1)], [(0, -2)], [(1, 0.9), (0, 0.4)])  # each by the best
    answers = [
        {
            "object": "list",
            "usage": usage,
            "results": [{"index": at, "relevance_score": score} for at, score in part],
        }
        for part in scores
    ]
    assert joined(asked, Endpoint.RERANK, *answers) == {
        "object": "list",
        "usage": {"prompt_tokens": 6, "total_tokens": 6},
        "results": [
            {"index": 3, "relevance_score": 0.9},
            {"index": 2, "relevance_score": 0.4},
            {"index": 0, "relevance_score": 0.1},
        ],
    }
    tei = [[{"index": at, "score": score} for at, score in part] for part in scores]
    assert joined({**asked, "top_n": 9}, Endpoint.RERANK, *tei) == [
        {"index": 3, "score": 0.9},
        {"index": 2, "score": 0.4},
        {"index": 0, "score": 0.1},
        {"index": 1, "score": -2},
    ]


ANY = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda one: (
        st.lists(one, max_size=3)
        | st.dictionaries(st.sampled_from(["choices", "usage", "results", "data", "index", "score"]), one)
    ),
)


@given(
    st.lists(ANY.map(lambda one: json.dumps(one).encode()) | st.binary(max_size=9), min_size=2, max_size=4)
)
def test_any_answers_are_joined_or_said_to_be_none(answers: list[bytes]) -> None:
    lists = {Endpoint.COMPLETION: "prompt", Endpoint.EMBEDDINGS: "input", Endpoint.RERANK: "documents"}
    for endpoint, name in lists.items():
        parts = split_request({name: [LONG * 2] * len(answers), "top_n": 1}, endpoint)
        assert parts is not None
        try:
            encoded_in_pieces(joined_answer(parts, answers))
        except PartsError as error:
            assert str(error)
