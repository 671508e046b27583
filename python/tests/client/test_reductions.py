"""Reductions of integers, truth values and bits, against NumPy."""

import pytest

import landbridge
from conftest import call_for_all

numpy = pytest.importorskip("numpy")


@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "uint16", "uint32", "uint64", "bool"])
def test_integers_and_truth_values_are_combined_as_in_numpy(groups, name):
    rng = numpy.random.default_rng(2)
    inputs = [rng.integers(0, 256, 80, "uint8").view(name) for _ in groups]
    if name == "bool":
        inputs = [rng.integers(0, 2, 80).astype(bool) for _ in groups]
    ops = {
        "sum": numpy.add, "prod": numpy.multiply, "min": numpy.minimum, "max": numpy.maximum,
        "band": numpy.bitwise_and, "bor": numpy.bitwise_or, "bxor": numpy.bitwise_xor,
    }  # fmt: skip
    for op, combine in ops.items():
        results = call_for_all(
            groups, lambda group, op=op: group.all_reduce(inputs[group.rank], op)
        )
        wanted = combine(combine(inputs[0], inputs[1]), inputs[2])
        for result in results:
            assert result.dtype == wanted.dtype and result.tobytes() == wanted.tobytes(), op


def test_reductions_that_are_not_defined_are_refused_before_a_post(groups):
    group = groups[0]
    for array, op in [
        (numpy.zeros(3, "uint16"), "avg"),
        (numpy.zeros(3, bool), "avg"),
        (numpy.zeros(3, "float32"), "bxor"),
        (numpy.zeros(3, "complex64"), "sum"),
    ]:
        for reduce in (group.all_reduce, group.reduce_scatter):
            with pytest.raises(landbridge.UnsupportedArray):
                reduce(array, op)
        with pytest.raises(landbridge.UnsupportedArray):
            group.reduce(array, 0, op)
