"""A plan as if devices lent less than they have."""

import pytest
from meshd.base.errors import UserError
from meshd.plan.machines import with_memory_limits

from tests.unit.plan.split_scene import GIB
from tests.unit.plan.test_given_back import free, half_taken


def test_no_device_has_more_than_its_limit() -> None:
    there = half_taken()
    before = free(there)
    assert before["a", "CPU"] == 8 and before["head", "CUDA0"] == 4
    limited = free(with_memory_limits(there, {"a": 2 * GIB, "": 6 * GIB}, "head"))
    assert limited == {("a", "CPU"): 2, ("b", "CPU"): 6, ("head", "CPU"): 6, ("head", "CUDA0"): 4}
    alone = free(with_memory_limits(there, {"head": GIB}, "head"))
    assert alone == {**before, ("head", "CPU"): 1, ("head", "CUDA0"): 1}


def test_without_limits_nothing_is_changed_and_a_limit_of_nobody_is_an_error() -> None:
    there = half_taken()
    assert with_memory_limits(there, {}, "head") is there
    with pytest.raises(UserError, match="`--memory c=…` names a node that cannot take part") as refused:
        with_memory_limits(there, {"c": 1}, "head")
    assert refused.value.hint == "there are `head`, `a`, `b`"
