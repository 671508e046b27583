"""Adapters that copy arrays of several libraries to and from slots of the arena.

An adapter of one library never imports another one: ``adapt`` only asks libraries that the process
has imported already.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import math
import operator
import sys
from collections.abc import Sequence
from typing import Any, Union

from .._protocol.descriptor import Dtype
from ..errors import UnsupportedArray
from .arena import Block

Shape = Union[int, Sequence[int]]

#: DLPack device types on the CPU: plain memory, and memory pinned for CUDA or ROCm.
_CPU_DEVICES = (1, 3, 11)


class Adapter:
    """An array that is copied to and from slots. Each library has a subclass."""

    def __init__(self, array: Any, dtype: Dtype, shape: tuple[int, ...]) -> None:
        self.array = array
        self.dtype = dtype
        self.shape = shape
        self.elements = math.prod(shape)
        self.nbytes = self.elements * dtype.bytes

    def address(self) -> int | None:
        """Returns the address of the elements, or ``None`` if they are not contiguous."""
        raise NotImplementedError

    def check_writable(self) -> None:
        """Raises ``UnsupportedArray`` when a result cannot be written into the array."""
        raise NotImplementedError

    def store(self, block: Block) -> None:
        """Copies the array into a slot."""
        raise NotImplementedError

    def load(self, block: Block) -> None:
        """Copies a slot into the array."""
        raise NotImplementedError

    def fresh(self, block: Block) -> Any:
        """Copies a slot into a new array of the same kind and shape."""
        raise NotImplementedError


def adapt(array: Any, dtype: Dtype | None = None) -> Adapter:
    """Returns the adapter of an array.

    Args:
        array: An array of any supported library.
        dtype: The element type, for libraries that have no name for it.

    Raises:
        UnsupportedArray: The array cannot take part.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return _Torch(torch, array, dtype)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(array, (numpy.ndarray, numpy.generic)):
        masked = sys.modules.get("numpy.ma")
        if masked is not None and isinstance(array, masked.MaskedArray):
            raise UnsupportedArray("a masked array would lose its mask; pass its `filled()`")
        return _Numpy(numpy, numpy.asarray(array), dtype)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(array, jax.Array):
        return _Jax(array, dtype)
    if hasattr(array, "__dlpack__"):
        return _from_dlpack(array, dtype)
    try:
        view = memoryview(array)
    except TypeError:
        accepted = "torch tensors, NumPy and JAX arrays, buffers, and DLPack arrays on the CPU"
        text = f"{type(array).__name__} is no array; accepted: {accepted}"
        raise UnsupportedArray(text) from None
    return _Memory(view, dtype)


def over(block: Block, shape: Shape, dtype: Any) -> Any:
    """Returns an array over a slot, of the library of ``dtype``; see ``Group.empty``."""
    shape = _shape(shape)
    kind = dtype_of(dtype)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        return _torch_over(torch, block, dtype, shape)
    if isinstance(dtype, str) and dtype in _LABELS:
        return _cast(block.view(), kind.format, shape)
    return _numpy_over(_numpy(), block, dtype, shape)


def size_of(shape: Shape, dtype: Any) -> int:
    """Returns the size of an array in bytes."""
    return math.prod(_shape(shape)) * dtype_of(dtype).bytes


def dtype_of(dtype: Any) -> Dtype:
    """Returns the ``Dtype`` of a library's dtype. Raises ``UnsupportedArray``."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        return _named(_torch_name(dtype))
    if isinstance(dtype, Dtype):
        return dtype
    if isinstance(dtype, str) and dtype in _LABELS:
        return Dtype.named(dtype)
    numpy = _numpy()
    try:
        found = numpy.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise UnsupportedArray(f"{dtype!r} is no dtype: {error}") from error
    return _named(_native(found).name)


def _native(dtype: Any) -> Any:
    if not dtype.isnative:
        raise UnsupportedArray(f"dtype {dtype} has the other byte order, which is not supported")
    return dtype


def _shape(shape: Shape) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, int) else shape
    try:
        found = tuple(map(operator.index, sizes))
    except TypeError:
        found = (-1,)
    if min(found, default=0) < 0:
        raise UnsupportedArray(f"shape {shape!r}: accepted: whole numbers from 0")
    return found


def _named(name: str) -> Dtype:
    """Returns the ``Dtype`` of a name that NumPy, ml_dtypes, JAX and torch share."""
    dtype = _NAMES.get(name)
    if dtype is None:
        known = ", ".join(_NAMES)
        raise UnsupportedArray(f"elements of {name} are not supported; accepted: {known}")
    return dtype


@functools.cache  # There are few dtypes.
def _torch_name(dtype: Any) -> str:
    return str(dtype).split(".")[-1]


@functools.cache  # NumPy builds the name at each access.
def _numpy_name(dtype: Any) -> str:
    name: str = dtype.name
    return name


def _agree(natural: Dtype | None, given: Dtype | None, name: str, is_u16: bool) -> Dtype:
    """Returns the library's dtype. 16-bit integers may be declared to hold bf16."""
    if given is None or given == natural:
        return natural if natural is not None else _named(name)
    if given == Dtype.BF16 and is_u16:
        return given
    raise UnsupportedArray(f"an array of {name} does not hold {given.label}")


def _numpy() -> Any:
    try:
        return importlib.import_module("numpy")
    except ModuleNotFoundError:
        raise UnsupportedArray("this array or dtype needs NumPy, which is not installed") from None


class _Memory(Adapter):
    """A buffer, such as bytes, bytearray, array.array or memoryview."""

    def __init__(self, view: memoryview, dtype: Dtype | None) -> None:
        code = view.format.lstrip("@=<") if view.itemsize == 1 or view.format[0] != ">" else ""
        # A C long has 64 bits on Linux. The format of a c_ubyte may be `<B`.
        natural = {"l": Dtype.I64}.get(code)
        natural = natural or next((d for d in Dtype if d.format == code and code != "H"), None)
        agreed = _agree(natural, dtype, f"`{view.format}`", code == "H")
        super().__init__(view, agreed, tuple(view.shape or ()))
        self._format = code

    def address(self) -> int | None:
        if self.array.readonly or not self.array.c_contiguous or not self.nbytes:
            return None
        return ctypes.addressof(ctypes.c_char.from_buffer(self.array))

    def check_writable(self) -> None:
        if self.array.readonly or not self.array.c_contiguous:
            raise UnsupportedArray("a result needs a writable, contiguous buffer")

    def store(self, block: Block) -> None:
        if self.array.c_contiguous and self.nbytes:
            block.view()[:] = self.array.cast("B")
        else:
            block.view()[:] = self.array.tobytes()

    def load(self, block: Block) -> None:
        if self.nbytes:  # A buffer without elements cannot be cast.
            self.array.cast("B")[:] = block.view()

    def fresh(self, block: Block) -> memoryview:
        return _cast(memoryview(bytearray(block.view())), self._format, self.shape)


class _Numpy(Adapter):
    """A NumPy array."""

    def __init__(self, numpy: Any, array: Any, dtype: Dtype | None) -> None:
        name = _numpy_name(array.dtype)
        _native(array.dtype)
        agreed = _agree(_NAMES.get(name), dtype, name, name == "uint16")
        super().__init__(array, agreed, array.shape)
        self._numpy = numpy

    def address(self) -> int | None:
        if not self.array.flags.c_contiguous:
            return None
        address: int = self.array.__array_interface__["data"][0]
        return address

    def check_writable(self) -> None:
        if not self.array.flags.writeable:
            raise UnsupportedArray("a result needs a writable array")
        _check_apart(self.shape, self.array.strides, self.array.itemsize)

    def store(self, block: Block) -> None:
        self._numpy.copyto(self._over(block), self.array)

    def load(self, block: Block) -> None:
        self._numpy.copyto(self.array, self._over(block))

    def fresh(self, block: Block) -> Any:
        return self._over(block).copy()

    def _over(self, block: Block) -> Any:
        return _numpy_over(self._numpy, block, self.array.dtype, self.shape)


class _Jax(_Numpy):
    """A JAX array. It is immutable, so a result is always a new one."""

    def __init__(self, array: Any, dtype: Dtype | None) -> None:
        if any(device.platform != "cpu" for device in array.devices()):
            raise UnsupportedArray("a JAX array on a device; copy it to the CPU first")
        numpy = _numpy()
        super().__init__(numpy, numpy.asarray(array), dtype)

    def address(self) -> int | None:
        return None

    def check_writable(self) -> None:
        raise UnsupportedArray(
            "`out` is a JAX array, which cannot be written; use the returned array"
        )

    def fresh(self, block: Block) -> Any:
        # JAX takes over aligned NumPy memory without a copy, and relies on it not to change. So
        # it gets a copy of the slot, which will be used again.
        return importlib.import_module("jax.numpy").asarray(super().fresh(block))


class _Torch(Adapter):
    """A torch tensor."""

    def __init__(self, torch: Any, tensor: Any, dtype: Dtype | None) -> None:
        if not tensor.is_cpu or tensor.layout is not torch.strided:
            what = f"a {tensor.layout} tensor on {tensor.device}"
            raise UnsupportedArray(f"{what}; accepted: dense tensors on the CPU")
        name = _torch_name(tensor.dtype)
        agreed = _agree(_NAMES.get(name), dtype, name, name == "uint16")
        plain = tensor.detach() if tensor.requires_grad else tensor
        super().__init__(plain, agreed, tensor.shape)
        self._torch = torch

    def address(self) -> int | None:
        address: int | None = self.array.data_ptr() if self.array.is_contiguous() else None
        return address

    def check_writable(self) -> None:
        if self.array.is_inference() and not self._torch.is_inference_mode_enabled():
            text = "`out` was made in inference mode and can be written only in it"
            raise UnsupportedArray(f"{text}; pass another tensor")
        _check_apart(self.shape, self.array.stride(), 1)

    def store(self, block: Block) -> None:
        self._over(block).copy_(self.array)

    def load(self, block: Block) -> None:
        if self.array.is_inference():
            # The thread that waits may not be in the mode of the thread that posted.
            with self._torch.inference_mode():
                self.array.copy_(self._over(block))
        else:
            self.array.copy_(self._over(block))

    def fresh(self, block: Block) -> Any:
        return self._over(block).clone()

    def _over(self, block: Block) -> Any:
        return _torch_over(self._torch, block, self.array.dtype, self.shape)


def _from_dlpack(array: Any, dtype: Dtype | None) -> Adapter:
    if array.__dlpack_device__()[0] not in _CPU_DEVICES:
        raise UnsupportedArray("a DLPack array on a device; copy it to the CPU first")
    numpy = _numpy()
    try:
        return _Numpy(numpy, numpy.from_dlpack(array), dtype)
    except (BufferError, RuntimeError, TypeError) as error:
        raise UnsupportedArray(f"NumPy cannot read this DLPack array: {error}") from error


def _check_apart(shape: tuple[int, ...], strides: Sequence[int], itemsize: int) -> None:
    """Checks that no two elements share memory.

    From the innermost dimension outwards, each stride must step over everything inside it. That
    also refuses unusual layouts whose elements interleave without sharing memory.
    """
    inside = itemsize
    for stride, size in sorted((abs(stride), size) for stride, size in zip(strides, shape)):
        if size > 1 and stride < inside and 0 not in shape:
            text = "its elements share memory, as after `expand` or `broadcast_to`"
            raise UnsupportedArray(f"no result can be written into this array: {text}")
        inside += stride * (size - 1)


def _cast(view: memoryview, code: Any, shape: tuple[int, ...]) -> memoryview:
    # A buffer without elements cannot be cast to a shape.
    return view.cast(code, shape) if math.prod(shape) else view.cast(code)


def _numpy_over(numpy: Any, block: Block, dtype: Any, shape: tuple[int, ...]) -> Any:
    return numpy.frombuffer(block.memory, dtype=dtype, count=math.prod(shape)).reshape(shape)


def _torch_over(torch: Any, block: Block, dtype: Any, shape: tuple[int, ...]) -> Any:
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    # The tensor has a storage of its own and begins at its start, because DDP reads the storage
    # from there.
    return torch.frombuffer(block.memory, dtype=dtype, count=count).view(shape)


_NAMES = {
    "float32": Dtype.F32,
    "float64": Dtype.F64,
    "float16": Dtype.F16,
    "bfloat16": Dtype.BF16,
    "int32": Dtype.I32,
    "int64": Dtype.I64,
    "uint8": Dtype.U8,
}
_LABELS = frozenset(dtype.label for dtype in Dtype)
