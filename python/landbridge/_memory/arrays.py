"""Adapters that copy arrays of several libraries to and from slots of the arena.

An adapter of one library never imports another one: ``adapt_array`` only asks libraries that the
process has imported already.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import importlib
import math
import operator
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Union

from .._argument_errors import describe_argument_in_error
from .._protocol.collective_types import Dtype
from ..errors import UnsupportedArray
from .arena import ArenaSlot
from .plain_memory import (
    check_plain_cpu_memory,
    check_plain_memory_disjoint,
    check_writable_plain_memory,
    copyable_plain_memory,
    plain_memory_conj_or_neg,
)

#: The types of an array's shape: the sizes of its dimensions, or the length of the only one.
Shape = Union[int, Sequence[int]]

#: 1, 3 and 11: the numbers of the DLPack device types whose memory the CPU can read. They are plain
#: memory, and memory pinned for CUDA or for ROCm. Arrays on other devices are refused.
_DLPACK_CPU_DEVICE_TYPES = (1, 3, 11)


class ElementType(NamedTuple):
    """The type of an array's elements."""

    #: The type as which they travel: ``u8`` for those that the gateway only moves.
    dtype: Dtype
    #: The name in errors: that of ``dtype``, or else the library's own.
    label: str
    #: The size of an element that the gateway only moves, in bytes; 0 for all other types.
    opaque_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """The size of an element in bytes."""
        return self.opaque_bytes or self.dtype.element_bytes


class ArrayAdapter:
    """An array that is copied to and from slots of the arena. Each array library has a subclass."""

    def __init__(self, array: Any, element: ElementType, shape: tuple[int, ...]) -> None:
        """Notes an array with the type of its elements and its shape."""
        self.array = array
        self.element = element
        self.shape = shape
        self.nbytes = math.prod(shape) * element.nbytes

    @property
    def dtype(self) -> Dtype:
        """The type as which the elements travel."""
        return self.element.dtype

    @property
    def agreed_shape(self) -> tuple[int, ...]:
        """The shape on which ranks agree, in elements of ``dtype``. The bytes of an element that is
        only moved are its last dimension."""
        size = self.element.opaque_bytes
        return (*self.shape, size) if size else tuple(self.shape)

    def with_shape(self, shape: tuple[int, ...]) -> ArrayAdapter:
        """Returns an adapter of the same library and dtype, for new arrays of another shape."""
        other = copy.copy(self)
        other.shape, other.nbytes = shape, math.prod(shape) * self.element.nbytes
        return other

    def describe(self) -> str:
        """Returns element type and shape in words, for errors."""
        return f"{self.element.label} of shape {tuple(self.shape)}"

    def address(self) -> int | None:
        """Returns the memory address of the elements, or ``None`` if they are not contiguous."""
        raise NotImplementedError

    def check_writable(self) -> None:
        """Raises ``UnsupportedArray`` when a result cannot be written into the array."""
        raise NotImplementedError

    def copy_to_slot(self, slot: ArenaSlot) -> None:
        """Copies the elements of the array into a slot of the arena."""
        raise NotImplementedError

    def copy_from_slot(self, slot: ArenaSlot) -> None:
        """Copies a slot of the arena into the array."""
        raise NotImplementedError

    def copy_to_new_array(self, slot: ArenaSlot) -> Any:
        """Returns a new array of the adapter's library, dtype and shape with the content of a
        slot."""
        raise NotImplementedError


def adapt_array(array: Any, dtype: Dtype | None = None) -> ArrayAdapter:
    """Returns the adapter of an array of any supported library.

    Args:
        array: An array of any supported library.
        dtype: The element type, for libraries that have no name for it.

    Raises:
        UnsupportedArray: The array cannot take part.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return _TorchArrayAdapter(torch, array, dtype)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(array, (numpy.ndarray, numpy.generic)):
        masked = sys.modules.get("numpy.ma")
        if masked is not None and isinstance(array, masked.MaskedArray):
            raise UnsupportedArray("a masked array would lose its mask; pass its `filled()`")
        elements = numpy.asarray(array)
        if isinstance(array, numpy.generic):
            # The array is a copy: a result in it would not be seen.
            elements.flags.writeable = False
        return _NumpyArrayAdapter(numpy, elements, dtype)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(array, jax.Array):
        return _JaxArrayAdapter(array, dtype)
    if hasattr(array, "__dlpack__"):
        return _adapt_dlpack_array(array, dtype)
    try:
        view = memoryview(array)
    except (ValueError, BufferError) as error:
        raise UnsupportedArray(f"{type(array).__name__} has no memory: {error}") from error
    except TypeError:
        accepted = "torch tensors, NumPy and JAX arrays, buffers, and DLPack arrays on the CPU"
        text = f"{type(array).__name__} is no array; accepted: {accepted}"
        raise UnsupportedArray(text) from None
    return _BufferArrayAdapter(view, dtype)


def array_over_slot(slot: ArenaSlot, shape: Shape, dtype: Any) -> Any:
    """Returns an array whose memory is a slot of the arena, of the library of ``dtype``; see
    ``Group.empty``."""
    shape = _check_array_shape(shape)
    kind = _parse_array_element(dtype).dtype
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        return _torch_array_over_slot(torch, slot, dtype, shape)
    if isinstance(dtype, str) and dtype in _DTYPE_LABELS:
        return _cast_array_buffer(slot.view(), kind.struct_format, shape)
    return _numpy_array_over_slot(_import_numpy_for_arrays(), slot, dtype, shape)


def array_nbytes(shape: Shape, dtype: Any) -> int:
    """Returns the size of an array of this shape and dtype in bytes. Raises ``UnsupportedArray``
    for a size that no system has."""
    nbytes = math.prod(_check_array_shape(shape)) * _parse_array_element(dtype).nbytes
    if nbytes >= 1 << 63:
        text = f"shape {describe_argument_in_error(shape)}: accepted: shapes of less than 8 EiB"
        raise UnsupportedArray(text)
    return nbytes


def parse_array_dtype(dtype: Any) -> Dtype:
    """Returns the ``Dtype`` of any supported library's dtype or of a name. Raises
    ``UnsupportedArray``, also for one of which there are no reductions."""
    element = _parse_array_element(dtype)
    check_reducible_array(element)
    return element.dtype


def check_reducible_array(element: ElementType) -> None:
    """Raises ``UnsupportedArray`` for elements of which there are no reductions."""
    if element.opaque_bytes:
        known = ", ".join(_DTYPES_BY_NAME)
        raise UnsupportedArray(f"elements of {element.label} cannot be reduced; accepted: {known}")


def _parse_array_element(dtype: Any) -> ElementType:
    """Returns the element type of any supported library's dtype or of a name. Raises
    ``UnsupportedArray``."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        return _torch_array_element(torch, dtype, None)
    if isinstance(dtype, Dtype):
        return ElementType(dtype, dtype.label)
    if isinstance(dtype, str) and dtype in _DTYPE_LABELS:
        return ElementType(Dtype.from_name(dtype), dtype)
    numpy = _import_numpy_for_arrays()
    try:
        found = numpy.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise UnsupportedArray(
            f"{describe_argument_in_error(dtype)} is no dtype: {error}"
        ) from error
    return _numpy_array_element(found, None)


def _numpy_array_element(dtype: Any, given: Dtype | None) -> ElementType:
    """Returns the element type of a NumPy dtype, or ``given`` where the caller has named one, as
    for bfloat16, which NumPy lacks. Raises ``UnsupportedArray`` when it is not in the host's byte
    order, holds Python objects, or has no bytes."""
    if not dtype.isnative:
        raise UnsupportedArray(f"dtype {dtype} has the other byte order, which is not supported")
    if dtype.hasobject or not dtype.itemsize:
        raise UnsupportedArray(f"elements of {dtype} have no bytes that could be sent")
    return _choose_array_element(_numpy_array_dtype_name(dtype), given) or ElementType(
        Dtype.U8, str(dtype), dtype.itemsize
    )


def _torch_array_element(torch: Any, dtype: Any, given: Dtype | None) -> ElementType:
    """Returns the element type of a torch dtype."""
    name = _torch_array_dtype_name(dtype)
    known = _choose_array_element(name, given)
    return known or ElementType(Dtype.U8, name, torch.empty(0, dtype=dtype).element_size())


def _check_array_shape(shape: Shape) -> tuple[int, ...]:
    """Returns an array's shape as a tuple. Raises ``UnsupportedArray`` for anything but whole
    numbers from 0."""
    sizes = (shape,) if isinstance(shape, int) else shape
    try:
        found = tuple(-1 if isinstance(size, bool) else operator.index(size) for size in sizes)
    except TypeError:
        found = (-1,)
    if min(found, default=0) < 0:
        text = f"shape {describe_argument_in_error(shape)}: accepted: whole numbers from 0"
        raise UnsupportedArray(text)
    return found


@functools.cache  # There are few dtypes.
def _torch_array_dtype_name(dtype: Any) -> str:
    """Returns the name of a torch dtype without its module, such as ``float32``."""
    return str(dtype).split(".")[-1]


@functools.cache  # NumPy builds the name at each access.
def _numpy_array_dtype_name(dtype: Any) -> str:
    """Returns the name of a NumPy dtype, such as ``float32``."""
    name: str = dtype.name
    return name


def _choose_array_element(name: str, given: Dtype | None) -> ElementType | None:
    """Returns the element type of a name that NumPy, ml_dtypes, JAX and torch share, such as
    ``float32``; ``None`` for a name without a ``Dtype``. The caller may say that 16-bit integers
    hold bf16. Raises ``UnsupportedArray`` where ``given`` is another type than the array's."""
    natural = _DTYPES_BY_NAME.get(name)
    if given == Dtype.BF16 and natural == Dtype.U16:
        natural = given
    if given is not None and given != natural:
        raise UnsupportedArray(f"an array of {name} does not hold {given.label}")
    return None if natural is None else ElementType(natural, natural.label)


def _import_numpy_for_arrays() -> Any:
    """Returns the module ``numpy``. Raises ``UnsupportedArray`` where it is not installed."""
    try:
        return importlib.import_module("numpy")
    except ModuleNotFoundError:
        raise UnsupportedArray("this array or dtype needs NumPy, which is not installed") from None


class _BufferArrayAdapter(ArrayAdapter):
    """The adapter of a buffer, such as bytes, bytearray, array.array or memoryview."""

    def __init__(self, view: memoryview, dtype: Dtype | None) -> None:
        """Makes the adapter of a buffer; ``dtype`` names elements that have no format. Raises
        ``UnsupportedArray`` for an unknown format."""
        code = view.format.lstrip("@=<") if view.itemsize == 1 or view.format[0] != ">" else ""
        name = _NAMES_BY_FORMAT.get(code)
        element = None if name is None else _choose_array_element(name, dtype)
        if element is None:
            text = f"a buffer of format `{view.format}`; use a view of it that is cast to `B`"
            raise UnsupportedArray(text)
        super().__init__(view, element, tuple(view.shape or ()))
        self._format = code

    def address(self) -> int | None:
        """Returns the memory address of the buffer; ``None`` if it is read-only, empty or not
        contiguous."""
        if self.array.readonly or not self.array.c_contiguous or not self.nbytes:
            return None
        return ctypes.addressof(ctypes.c_char.from_buffer(self.array))

    def check_writable(self) -> None:
        """Raises ``UnsupportedArray`` when a result cannot be written into the buffer."""
        if self.array.readonly or not self.array.c_contiguous:
            raise UnsupportedArray("a result needs a writable, contiguous buffer")

    def copy_to_slot(self, slot: ArenaSlot) -> None:
        """Copies the elements of the buffer into a slot of the arena."""
        if self.array.c_contiguous and self.nbytes:
            slot.view()[:] = self.array.cast("B")
        else:
            slot.view()[:] = self.array.tobytes()

    def copy_from_slot(self, slot: ArenaSlot) -> None:
        """Copies a slot of the arena into the buffer."""
        if self.nbytes:  # A buffer without elements cannot be cast.
            self.array.cast("B")[:] = slot.view()

    def copy_to_new_array(self, slot: ArenaSlot) -> memoryview:
        """Returns a new memoryview of the buffer's format and shape with the content of a slot."""
        return _cast_array_buffer(memoryview(bytearray(slot.view())), self._format, self.shape)


class _NumpyArrayAdapter(ArrayAdapter):
    """The adapter of a NumPy array."""

    def __init__(self, numpy: Any, array: Any, dtype: Dtype | None) -> None:
        """Makes the adapter of a NumPy array; ``dtype`` names elements that NumPy has no name for.
        Raises ``UnsupportedArray`` for an unknown dtype."""
        super().__init__(array, _numpy_array_element(array.dtype, dtype), array.shape)
        self._numpy = numpy

    def address(self) -> int | None:
        """Returns the memory address of the array's elements, or ``None`` if they are not
        contiguous."""
        if not self.array.flags.c_contiguous:
            return None
        address: int = self.array.__array_interface__["data"][0]
        return address

    def check_writable(self) -> None:
        """Raises ``UnsupportedArray`` when the array is read-only or its elements share memory."""
        if not self.array.flags.writeable:
            raise UnsupportedArray("a result needs a writable array")
        check_plain_memory_disjoint(self.shape, self.array.strides, self.array.itemsize, "`out`")

    def copy_to_slot(self, slot: ArenaSlot) -> None:
        """Copies the elements of the NumPy array into a slot of the arena."""
        self._numpy.copyto(self._view_slot(slot), self.array)

    def copy_from_slot(self, slot: ArenaSlot) -> None:
        """Copies a slot of the arena into the NumPy array."""
        self._numpy.copyto(self.array, self._view_slot(slot))

    def copy_to_new_array(self, slot: ArenaSlot) -> Any:
        """Returns a new NumPy array of the same dtype and shape with the content of a slot."""
        return self._view_slot(slot).copy()

    def _view_slot(self, slot: ArenaSlot) -> Any:
        """Returns a NumPy array of the same dtype and shape whose memory is a slot of the arena."""
        return _numpy_array_over_slot(self._numpy, slot, self.array.dtype, self.shape)


class _JaxArrayAdapter(_NumpyArrayAdapter):
    """The adapter of a JAX array. Such an array is immutable, so a result is always a new one."""

    def __init__(self, array: Any, dtype: Dtype | None) -> None:
        """Makes the adapter of a JAX array. Raises ``UnsupportedArray`` for one that is traced,
        deleted, or not whole on the CPU."""
        tracer = getattr(importlib.import_module("jax.core"), "Tracer", ())
        if isinstance(array, tracer):
            raise UnsupportedArray("a traced JAX array has no elements yet; use it outside `jit`")
        if array.is_deleted():
            text = "a JAX array that was deleted, as one that was donated to `jit`"
            raise UnsupportedArray(f"{text}; use the result instead")
        if not array.is_fully_addressable:
            text = "a JAX array of which this process has only a part"
            raise UnsupportedArray(f"{text}; use its `addressable_data(0)`")
        if any(device.platform != "cpu" for device in array.devices()):
            raise UnsupportedArray("a JAX array on a device; copy it to the CPU first")
        numpy = _import_numpy_for_arrays()
        try:
            values = numpy.asarray(array)
        except (RuntimeError, TypeError) as error:
            # Keys of random numbers, and whatever else JAX hides the elements of.
            text = f"NumPy cannot read a JAX array of {array.dtype}: {error}"
            raise UnsupportedArray(f"{text}; pass `jax.random.key_data` of a key") from error
        super().__init__(numpy, values, dtype)

    def address(self) -> int | None:
        """Returns ``None``, so that a JAX array is always copied into a slot."""
        return None

    def check_writable(self) -> None:
        """Raises ``UnsupportedArray``, because a JAX array cannot be written."""
        raise UnsupportedArray(
            "`out` is a JAX array, which cannot be written; use the returned array"
        )

    def copy_to_new_array(self, slot: ArenaSlot) -> Any:
        """Returns a new JAX array of the same dtype and shape with the content of a slot."""
        # JAX takes over aligned NumPy memory without a copy, and relies on it not to change. So
        # it gets a copy of the slot, which will be used again.
        return importlib.import_module("jax.numpy").asarray(super().copy_to_new_array(slot))


class _TorchArrayAdapter(ArrayAdapter):
    """The adapter of a torch tensor on the CPU."""

    def __init__(self, torch: Any, tensor: Any, dtype: Dtype | None) -> None:
        """Makes the adapter of a torch tensor. Raises ``UnsupportedArray`` for one that is no plain
        memory of the CPU, or has an unknown dtype."""
        check_plain_cpu_memory(torch, tensor, "the tensor")
        element = _torch_array_element(torch, tensor.dtype, dtype)
        plain = tensor.detach() if tensor.requires_grad else tensor
        super().__init__(plain, element, tensor.shape)
        self._torch = torch

    def address(self) -> int | None:
        """Returns the memory address of the tensor's elements, or ``None`` if they are not
        contiguous or stand there as their negatives."""
        if not self.array.is_contiguous() or plain_memory_conj_or_neg(self.array):
            return None
        address: int = self.array.data_ptr()
        return address

    def check_writable(self) -> None:
        """Raises ``UnsupportedArray`` when the tensor was made in inference mode and this thread is
        not in it, or its elements share memory."""
        check_writable_plain_memory(self._torch, self.array, "`out`")

    def copy_to_slot(self, slot: ArenaSlot) -> None:
        """Copies the elements of the tensor into a slot of the arena."""
        self._copyable(self._view_slot(slot)).copy_(self._copyable(self.array))

    def copy_from_slot(self, slot: ArenaSlot) -> None:
        """Copies a slot of the arena into the tensor."""
        result, array = self._copyable(self._view_slot(slot)), self._copyable(self.array)
        if self.array.is_inference():
            # The thread that waits may not be in the mode of the thread that posted.
            with self._torch.inference_mode():
                array.copy_(result)
        else:
            array.copy_(result)

    def copy_to_new_array(self, slot: ArenaSlot) -> Any:
        """Returns a new tensor of the same dtype and shape with the content of a slot."""
        return self._copyable(self._view_slot(slot)).clone().view(self.array.dtype)

    def _copyable(self, tensor: Any) -> Any:
        """Returns a tensor that PyTorch can copy, over the same memory."""
        return copyable_plain_memory(self._torch, tensor)

    def _view_slot(self, slot: ArenaSlot) -> Any:
        """Returns a tensor of the same dtype and shape whose memory is a slot of the arena."""
        return _torch_array_over_slot(self._torch, slot, self.array.dtype, self.shape)


class _DlpackArrayAdapter(_NumpyArrayAdapter):
    """The adapter of a DLPack array on the CPU."""

    def __init__(self, numpy: Any, given: Any, dtype: Dtype | None) -> None:
        """Makes the adapter of what the array hands over to NumPy."""
        super().__init__(numpy, numpy.from_dlpack(given), dtype)
        self._given = given

    def check_writable(self) -> None:
        """Raises ``UnsupportedArray`` when the array is read-only, or hands over copies of its
        elements, in which a result would be lost."""
        super().check_writable()
        one, again = self.array, self._numpy.from_dlpack(self._given)
        if self.nbytes and not self._numpy.shares_memory(one, again):
            raise UnsupportedArray("a result needs a writable array; this one hands over copies")


def _adapt_dlpack_array(array: Any, dtype: Dtype | None) -> ArrayAdapter:
    """Returns the adapter of a DLPack array on the CPU, which NumPy reads without a copy."""
    if array.__dlpack_device__()[0] not in _DLPACK_CPU_DEVICE_TYPES:
        raise UnsupportedArray("a DLPack array on a device; copy it to the CPU first")
    numpy = _import_numpy_for_arrays()
    try:
        return _DlpackArrayAdapter(numpy, array, dtype)
    except (BufferError, RuntimeError, TypeError) as error:
        raise UnsupportedArray(f"NumPy cannot read this DLPack array: {error}") from error


def _cast_array_buffer(view: memoryview, code: Any, shape: tuple[int, ...]) -> memoryview:
    """Returns a view of bytes as elements of a ``struct`` format in a shape."""
    # A buffer without elements cannot be cast to a shape.
    return view.cast(code, shape) if math.prod(shape) else view.cast(code)


def _numpy_array_over_slot(numpy: Any, slot: ArenaSlot, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Returns a NumPy array whose memory is a slot of the arena."""
    return numpy.frombuffer(slot.memory, dtype=dtype, count=math.prod(shape)).reshape(shape)


def _torch_array_over_slot(torch: Any, slot: ArenaSlot, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Returns a torch tensor whose memory is a slot of the arena."""
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    # The tensor has a storage of its own and begins at its start, because DDP reads the storage
    # from there.
    return torch.frombuffer(slot.memory, dtype=dtype, count=count).view(shape)


#: The ``Dtype`` for each name of an element type that NumPy, ml_dtypes, JAX and torch share.
_DTYPES_BY_NAME = {
    "float32": Dtype.F32,
    "float64": Dtype.F64,
    "float16": Dtype.F16,
    "bfloat16": Dtype.BF16,
    "int32": Dtype.I32,
    "int64": Dtype.I64,
    "uint8": Dtype.U8,
    "int8": Dtype.I8,
    "int16": Dtype.I16,
    "uint16": Dtype.U16,
    "uint32": Dtype.U32,
    "uint64": Dtype.U64,
    "bool": Dtype.BOOL,
}
#: The name of the element type for each known format of a buffer. A C long and a size have 64 bits
#: on Linux.
_NAMES_BY_FORMAT = {
    **{d.struct_format: name for name, d in _DTYPES_BY_NAME.items() if d != Dtype.BF16},
    **{"l": "int64", "n": "int64", "L": "uint64", "N": "uint64"},
}
#: The names of this package for element types, such as ``bf16``, which make a buffer of
#: ``Group.empty``.
_DTYPE_LABELS = frozenset(dtype.label for dtype in Dtype)
