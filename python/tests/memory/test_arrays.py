"""Arrays of every kind, into a slot and out of it."""

import array
import ctypes
import math
import random
import sys

import pytest

from landbridge import UnsupportedArray
from landbridge._memory import arrays
from landbridge._memory.arena import Arena
from landbridge._protocol.collective_types import Dtype

numpy = pytest.importorskip("numpy")
NUMPY = ["float32", "float64", "float16", "int8", "int16", "int32", "int64"]
NUMPY += ["uint8", "uint16", "uint32", "uint64"]


@pytest.fixture
def arena():
    return Arena(1 << 16)


def copy_to_slot_of(arena, source, dtype=None):
    """Copies an array to a slot. Returns its adapter and the slot."""
    adapter = arrays.adapt_array(source, dtype)
    slot = arena.allocate_slot(adapter.nbytes)
    adapter.copy_to_slot(slot)
    return adapter, slot


@pytest.mark.parametrize("name", NUMPY)
def test_numpy_arrays(arena, name):
    source = numpy.arange(24, dtype=name).reshape(2, 3, 4)
    adapter, slot = copy_to_slot_of(arena, source)
    assert adapter.dtype.label == {"float": "f", "int": "i", "uint": "u"}[
        name.rstrip("0123456789")
    ] + name.lstrip("uintfloa")
    assert bytes(slot.view()) == source.tobytes()
    fresh = adapter.copy_to_new_array(slot)
    assert fresh.dtype == source.dtype and (fresh == source).all()
    slot.view()[:] = bytes(source.nbytes)
    assert (fresh == source).all(), "memory of its own"


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (5, 7)])
def test_every_shape_goes_and_comes_back(arena, shape):
    source = numpy.full(shape, 1.5, "float32")
    adapter, slot = copy_to_slot_of(arena, source)
    assert adapter.nbytes == 4 * math.prod(shape)
    out = numpy.zeros(shape, "float32")
    arrays.adapt_array(out).copy_from_slot(slot)
    assert (out == source).all() and adapter.copy_to_new_array(slot).shape == shape


def test_strided_arrays_go_in_the_order_of_their_elements(arena):
    source = numpy.arange(24, dtype="float32").reshape(4, 6).T[::2]
    _, slot = copy_to_slot_of(arena, source)
    assert bytes(slot.view()) == numpy.ascontiguousarray(source).tobytes()
    out = numpy.zeros((6, 4), "float32").T[:, ::2].T
    assert not out.flags.c_contiguous
    arrays.adapt_array(out).copy_from_slot(slot)
    assert (out == source).all()


@pytest.mark.parametrize(
    ("code", "label"),
    [("f", "f32"), ("d", "f64"), ("i", "i32"), ("q", "i64"), ("l", "i64"), ("B", "u8")]
    + [("b", "i8"), ("h", "i16"), ("H", "u16"), ("I", "u32"), ("L", "u64"), ("Q", "u64")],
)
def test_buffers_of_the_standard_library(arena, code, label):
    source = array.array(code, [1, 2, 3])
    adapter, slot = copy_to_slot_of(arena, source)
    assert adapter.dtype.label == label
    fresh = adapter.copy_to_new_array(slot)
    assert fresh.format == code and list(fresh) == [1, 2, 3] and not fresh.readonly
    out = array.array(code, [0, 0, 0])
    arrays.adapt_array(out).copy_from_slot(slot)
    assert out == source


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_buffers_without_elements(arena, shape):
    source = memoryview(numpy.zeros(shape, "float32"))
    adapter, slot = copy_to_slot_of(arena, source)
    adapter.check_writable()
    adapter.copy_from_slot(slot)
    assert (adapter.shape, adapter.nbytes, adapter.copy_to_new_array(slot).nbytes) == (shape, 0, 0)


def test_bytes_can_be_contributed_but_hold_no_result(arena):
    adapter, slot = copy_to_slot_of(arena, b"abc")
    assert bytes(adapter.copy_to_new_array(slot)) == b"abc"
    with pytest.raises(UnsupportedArray, match="writable"):
        adapter.check_writable()
    with pytest.raises(UnsupportedArray, match="writable"):
        arrays.adapt_array(numpy.frombuffer(b"abcd", "float32")).check_writable()


def test_numpy_scalars_can_be_contributed_but_hold_no_result(arena):
    adapter, slot = copy_to_slot_of(arena, numpy.float32(3))
    assert bytes(slot.view()) == numpy.float32(3).tobytes()
    with pytest.raises(UnsupportedArray, match="needs a writable array"):
        adapter.check_writable()
    arrays.adapt_array(numpy.array(3.0)).check_writable()


def test_bf16_as_16_bit_integers_only_when_said_so(arena):
    source = numpy.array([0x3F80, 0x4000], "uint16")
    assert arrays.adapt_array(source).dtype == Dtype.U16
    adapter, slot = copy_to_slot_of(arena, source, Dtype.BF16)
    assert adapter.dtype == Dtype.BF16
    assert (adapter.copy_to_new_array(slot) == source).all()
    assert copy_to_slot_of(arena, array.array("H", [1]), Dtype.BF16)[0].dtype == Dtype.BF16
    with pytest.raises(UnsupportedArray, match="does not hold bf16"):
        arrays.adapt_array(numpy.zeros(2, "float32"), Dtype.BF16)


def test_bf16_of_ml_dtypes(arena):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    source = numpy.array([1.5, -2, math.inf], ml_dtypes.bfloat16)
    adapter, slot = copy_to_slot_of(arena, source)
    assert adapter.dtype == Dtype.BF16 and bytes(slot.view()) == source.tobytes()
    assert adapter.copy_to_new_array(slot).dtype == ml_dtypes.bfloat16
    assert arrays.parse_array_dtype(ml_dtypes.bfloat16) == Dtype.BF16


@pytest.mark.parametrize(
    "wrong",
    [[1.0], "text", numpy.zeros(1, ">f4"), numpy.zeros(1, [("a", "f4"), ("b", ">i2")]),
     numpy.array([{}]), numpy.zeros(1, [("a", object)]), numpy.zeros(1, numpy.dtype([])),
     memoryview((ctypes.c_longdouble * 2)()), numpy.ma.zeros(1, "float32")],
    ids=["list", "str", "big endian", "big endian inside", "objects", "objects inside", "no bytes",
         "unknown format", "masked"],
)  # fmt: skip
def test_unsupported_arrays_are_refused(wrong):
    with pytest.raises(UnsupportedArray):
        arrays.adapt_array(wrong)


@pytest.mark.parametrize("dtype", ["complex64", "S3", "M8[s]", [("a", "<f4"), ("b", "u1")]])
def test_elements_of_any_other_type_are_moved_as_bytes(arena, dtype):
    source = numpy.frombuffer(random.randbytes(6 * numpy.dtype(dtype).itemsize), dtype)
    source = source.reshape(2, 3)
    adapter, slot = copy_to_slot_of(arena, source)
    assert adapter.dtype == Dtype.U8 and adapter.agreed_shape == (2, 3, source.itemsize)
    assert bytes(slot.view()) == source.tobytes()
    fresh = adapter.copy_to_new_array(slot)
    assert fresh.dtype == source.dtype and fresh.tobytes() == source.tobytes()
    with pytest.raises(UnsupportedArray, match="cannot be reduced"):
        arrays.check_reducible_array(adapter.element)
    with pytest.raises(UnsupportedArray, match="does not hold u8"):
        arrays.adapt_array(source, Dtype.U8)


def test_truth_values_have_a_type_of_their_own(arena):
    source = numpy.array([True, False, True])
    for view in (source, memoryview(source)):
        adapter, slot = copy_to_slot_of(arena, view)
        assert adapter.dtype == Dtype.BOOL and bytes(slot.view()) == b"\1\0\1"
        assert list(adapter.copy_to_new_array(slot)) == [True, False, True]
    torch = pytest.importorskip("torch")
    adapter, slot = copy_to_slot_of(arena, torch.tensor([True, False]))
    assert adapter.dtype == Dtype.BOOL and adapter.copy_to_new_array(slot).dtype == torch.bool


@pytest.mark.parametrize("name", ["complex64", "float8_e4m3fn", "uint16", "int8"])
def test_tensors_of_any_type_go_and_come_back(arena, name):
    torch = pytest.importorskip("torch")
    source = torch.frombuffer(bytearray(range(1, 49)), dtype=getattr(torch, name)).reshape(2, -1)
    adapter, slot = copy_to_slot_of(arena, source)
    fresh = adapter.copy_to_new_array(slot)
    assert fresh.dtype == source.dtype and fresh.shape == source.shape
    assert bytes(slot.view()) == bytes(range(1, 49)) and adapter.nbytes == 48
    conjugate = torch.tensor([1 + 2j]).conj()
    _, slot = copy_to_slot_of(arena, conjugate)
    assert numpy.frombuffer(slot.view(), "complex64")[0] == 1 - 2j


def test_a_result_needs_a_place_for_each_element():
    strided = numpy.lib.stride_tricks.as_strided
    zeros = numpy.zeros((6, 4), "float32")
    for good in (zeros, zeros.T, zeros[::-2, 1::2], zeros[:, :0]):
        arrays.adapt_array(good).check_writable()
    for wrong in (strided(zeros, (3,), (0,)), strided(zeros, (3, 3), (4, 4))):
        with pytest.raises(UnsupportedArray, match="share memory"):
            arrays.adapt_array(wrong).check_writable()
    torch = pytest.importorskip("torch")
    zeros = torch.zeros(6, 4)
    for good in (zeros, zeros.T, zeros[::2, 1::2], zeros[:1, :1].expand(1, 1)):
        arrays.adapt_array(good).check_writable()
    for wrong in (torch.zeros(1).expand(4), zeros.as_strided((3, 3), (1, 1))):
        with pytest.raises(UnsupportedArray, match="share memory"):
            arrays.adapt_array(wrong).check_writable()


def test_torch_tensors_of_inference_mode_are_written_only_there(arena):
    torch = pytest.importorskip("torch")
    slot = copy_to_slot_of(arena, torch.ones(3))[1]
    with torch.inference_mode():
        out = arrays.adapt_array(torch.zeros(3))
        out.check_writable()
    out.copy_from_slot(slot)  # The thread that waits is not in inference mode.
    assert out.array.tolist() == [1, 1, 1]
    with pytest.raises(UnsupportedArray, match="inference mode"):
        out.check_writable()


class DlpackArray:
    """An array whose only interface is DLPack."""

    def __init__(self, of, device=1):
        self._of, self._device = of, device

    def __dlpack__(self, **options):
        return self._of.__dlpack__(**options)

    def __dlpack_device__(self):
        return (self._device, 0)


def test_any_dlpack_array_on_the_cpu(arena):
    source = numpy.arange(6, dtype="float32")
    adapter, slot = copy_to_slot_of(arena, DlpackArray(source))
    assert bytes(slot.view()) == source.tobytes()
    assert (adapter.copy_to_new_array(slot) == source).all()
    with pytest.raises(UnsupportedArray, match="on a device"):
        arrays.adapt_array(DlpackArray(source, device=2))


class CopyingDlpackArray(DlpackArray):
    """A DLPack array that hands over a copy of its elements."""

    def __dlpack__(self, **options):
        return super().__dlpack__(**{**options, "copy": True})


def test_dlpack_arrays_that_hand_over_copies_hold_no_result(arena):
    source = numpy.arange(6, dtype="float32")
    adapter, slot = copy_to_slot_of(arena, CopyingDlpackArray(source))
    assert bytes(slot.view()) == source.tobytes()
    with pytest.raises(UnsupportedArray, match="hands over copies"):
        adapter.check_writable()
    arrays.adapt_array(DlpackArray(source)).check_writable()


def test_arrays_over_a_slot_are_the_slot(arena):
    for dtype in ("float32", numpy.float32, numpy.dtype("f4"), "f32"):
        slot = arena.allocate_slot(arrays.array_nbytes((2, 3), dtype))
        over = arrays.array_over_slot(slot, (2, 3), dtype)
        assert isinstance(over, memoryview if dtype == "f32" else numpy.ndarray)
        over[1, 2] = 7.0
        assert bytes(slot.view()[20:]) == numpy.float32(7).tobytes()
        assert arena.offset_of(arrays.adapt_array(over).address(), 24) == slot.offset
    for wrong in ("foo", ">f4", "O", "S0"):
        with pytest.raises(UnsupportedArray):
            arrays.array_nbytes(3, wrong)
    for wrong in (-1, (2, -3), 1.5, (1.5,), "3"):
        with pytest.raises(UnsupportedArray, match="shape"):
            arrays.array_nbytes(wrong, "f32")


def test_jax_arrays_without_elements_are_refused_by_kind():
    jax = pytest.importorskip("jax")
    gone = jax.numpy.ones(3)
    gone.delete()
    for array, words in [(gone, "was deleted"), (jax.random.key(0), "key_data")]:
        with pytest.raises(UnsupportedArray, match=words):
            arrays.adapt_array(array)


def test_a_released_buffer_is_refused():
    view = memoryview(bytearray(8))
    view.release()
    with pytest.raises(UnsupportedArray, match="has no memory"):
        arrays.adapt_array(view)


def test_jax_arrays_never_share_memory_with_a_slot(arena):
    """JAX takes over aligned NumPy memory without a copy; a slot is aligned, and used again."""
    jax = pytest.importorskip("jax")
    source = jax.numpy.arange(1024, dtype="float32")
    adapter, slot = copy_to_slot_of(arena, source)
    fresh = adapter.copy_to_new_array(slot)
    assert isinstance(fresh, jax.Array)
    slot.view()[:] = bytes(slot.nbytes)
    assert (fresh == source).all()
    with pytest.raises(UnsupportedArray, match="cannot be written"):
        adapter.check_writable()
    bf16 = copy_to_slot_of(arena, jax.numpy.ones(3, "bfloat16"))[0]
    assert bf16.dtype == Dtype.BF16


def test_torch_tensors(arena):
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64):
        source = torch.arange(24).reshape(4, 6).to(dtype).T
        adapter, slot = copy_to_slot_of(arena, source)
        fresh = adapter.copy_to_new_array(slot)
        assert fresh.dtype == dtype and torch.equal(fresh, source)
        slot.view()[:] = bytes(slot.nbytes)
        assert torch.equal(fresh, source), "memory of its own"
    weights = torch.ones(4, requires_grad=True)
    copy_to_slot_of(arena, weights)
    with pytest.raises(UnsupportedArray, match="on meta"):
        arrays.adapt_array(torch.zeros(2, device="meta"))
    with pytest.raises(UnsupportedArray, match="sparse"):
        arrays.adapt_array(torch.zeros(2).to_sparse())


def test_torch_tensors_over_a_slot_begin_at_their_storage(arena):
    """DDP reads the storage from its start: with an offset it would read another slot."""
    torch = pytest.importorskip("torch")
    before = arena.allocate_slot(100)
    slot = arena.allocate_slot(64)
    over = arrays.array_over_slot(slot, (4, 4), torch.float32)
    assert over.storage_offset() == 0 and over.untyped_storage().nbytes() == 64
    assert before and slot.offset > 0
    assert arena.offset_of(over.data_ptr(), 64) == slot.offset


def test_the_byte_order_is_the_one_of_the_protocol():
    assert sys.byteorder == "little"
