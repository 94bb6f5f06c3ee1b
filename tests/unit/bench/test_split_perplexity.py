"""What `tests.bench.split_perplexity` reads of llama-perplexity, and makes of that."""

import pytest

from tests.bench.split_perplexity import WAYS
from tests.e2e.perplexity import Effect, read_output, table

OUTPUT = """
====== Perplexity statistics ======
Mean PPL(Q)                   :  13.010879 ±   1.107803
Mean PPL(base)                :  13.010867 ±   1.107802
Cor(ln(PPL(Q)), ln(PPL(base))): 100.00%
Mean ln(PPL(Q)/PPL(base))     :   0.000001 ±       -nan
====== KL divergence statistics ======
Mean    KLD:   0.000012 ±   0.000003
====== Token probability statistics ======
Same top p: 97.157 ± 0.521 %
"""


def test_equal_results_have_no_error() -> None:
    base, effect = read_output(OUTPUT)
    assert base == (13.010867, 1.107802)
    assert effect == Effect((13.010879, 1.107803), (0.000001, 0.0), (0.000012, 0.000003), (97.157, 0.521))
    assert table("one process", base, {"by layers": effect})[2:] == [
        "| one process | 13.011 ± 1.108 | | | |",
        "| by layers | 13.011 ± 1.108 | 0.000001 ± 0.000000 | 0.000012 ± 0.000003 | 97.2 ± 0.5 % |",
    ]


def test_what_is_not_said_is_an_error() -> None:
    with pytest.raises(ValueError, match="Mean    KLD"):
        read_output(OUTPUT.replace("Mean    KLD", "Mean"))


def test_sums_are_rounded_only_by_tensors() -> None:
    assert all("tensor" in way.options for way in WAYS.values() if way.env)
    assert all(way.workers for way in WAYS.values() if "-sm" in way.options)
