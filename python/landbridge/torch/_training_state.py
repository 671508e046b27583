"""The training state of a rank as bytes: a state dict of any nesting, packed for another rank.

``torch.load`` with ``weights_only`` takes tensors, numbers, texts and plain containers, and runs no
code of the sender. What else states hold is packed into these: NumPy numbers and arrays, and
containers of the standard library. ``resume`` asks first whether a state can be packed, before any
rank waits for it.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import pickle
import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from .._memory.plain_memory import check_plain_memory, copyable_plain_memory
from ..errors import UnsupportedArray
from ._tensor_broadcast import cpu_tensor_to_broadcast
from ._transferred_state.state_body import StateBody

#: The first item of each tuple that stands for a value that cannot be sent as it is.
#: ``_pack_state`` writes such tuples, and ``_unpack_state`` knows them by this text.
_PACKED_MARK = "\0landbridge"
#: 8 bytes: the number at the end of a state's bytes that tells where its long tensors end.
_BODY_LENGTH_BYTES = 8
#: The types whose values are sent as they are, since ``torch.load`` takes them; subclasses of them
#: do not count.
_PLAIN_TYPES = frozenset(
    {type(None), bool, float, complex, str, bytes, bytearray}
    | {torch.Size, torch.dtype, torch.device, torch.layout}
)
#: 2,000 bits: the longest integer that is sent as it is; a longer one is sent as text.
#: ``torch.load`` refuses integers of 256 bytes, which are 2,048 bits.
_PLAIN_INTEGER_BITS_MAX = 2_000
#: 60 characters: the longest value that an error of ``resume`` shows as it is, so that it stays
#: readable. Of a longer value it shows a digest.
_LISTED_TEXT_MAX = 60
#: The pattern of the name of a refused class in the text of `torch.load`'s error.
_REFUSED_CLASS = re.compile(r"(?:GLOBAL|function|class) ([\w.]+) was not an allowed global")
#: The factories that a ``defaultdict`` in a state may have, by name. A state with another factory
#: cannot be sent.
_FACTORIES: dict[str, Any] = {
    made.__name__: made for made in (bool, int, float, complex, str, bytes, list, dict, set, tuple)
}


class UnpackableValue(Exception):
    """A value that cannot be packed. Its text has the way to it and its type."""


def encode_training_state(state: Any) -> bytearray:
    """Returns a state as bytes: its long tensors, then what else it holds, then the length of the
    first part. Raises ``UnpackableValue`` as ``check_training_state``."""
    body, rest = StateBody(_PACKED_MARK), io.BytesIO()
    torch.save(body.take_tensors(_pack_state(state, "")), rest)
    begin, end = body.nbytes, body.nbytes + rest.getbuffer().nbytes
    content = bytearray(end + _BODY_LENGTH_BYTES)
    body.copy_tensors(memoryview(content))
    memoryview(content)[begin:end] = rest.getbuffer()
    content[end:] = begin.to_bytes(_BODY_LENGTH_BYTES, "little")
    return content


def decode_training_state(content: memoryview) -> Any:
    """Returns the state that the bytes hold, with every value of its old type, on the CPU. Raises
    ``UnpackableValue`` for a class that this process does not take."""
    begin = int.from_bytes(content[-_BODY_LENGTH_BYTES:], "little")
    rest = io.BytesIO(content[begin:-_BODY_LENGTH_BYTES])
    try:
        packed = torch.load(rest, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # Its own text is about files, and has escape codes of a terminal.
        found = _REFUSED_CLASS.search(str(error))
        what = f"an object of {found.group(1)}" if found else "an object"
        text = f"it holds {what} that this rank does not take: declare its class on every rank"
        raise UnpackableValue(f"{text} with `torch.serialization.add_safe_globals`") from error
    return _unpack_state(StateBody(_PACKED_MARK).put_tensors(packed, content))


def check_training_state(state: Any) -> None:
    """Raises ``UnpackableValue`` for a state that cannot be packed. It copies no tensor."""
    try:
        _pack_state(state, "", copies=False)
    except RecursionError as error:
        raise UnpackableValue("it holds itself, or is nested too deep") from error


def list_state_values(value: Any, way: str) -> Iterator[str]:
    """Yields a line for each value of a state: the way to it, a tab, and the value or its digest.
    Equal states give equal lines. An object of an unknown type counts by its type alone."""
    numpy = sys.modules.get("numpy")
    if isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield from list_state_values(value[key], f"{way}[{key!r}]")
    elif isinstance(value, (list, tuple, deque)):
        for at, item in enumerate(value):
            yield from list_state_values(item, f"{way}[{at}]")
    else:
        if isinstance(value, torch.Tensor):
            text = _state_tensor_text(value)
        elif numpy is not None and isinstance(value, numpy.generic):
            text = repr(value.item())
        elif numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
            text = f"{value.dtype} {value.shape} {_state_digest(value.tobytes())}"
        elif type(value) is int or type(value) in _PLAIN_TYPES:
            text = repr(value)
        elif isinstance(value, (set, frozenset)):
            text = repr(sorted(map(repr, value)))
        else:
            text = type(value).__qualname__
        is_short = len(text) <= _LISTED_TEXT_MAX
        line = f"{way}\t{text if is_short else _state_digest(text.encode())}"
        yield line.replace("\n", " ")


def _state_tensor_text(tensor: torch.Tensor) -> str:
    """Returns dtype and number of a tensor without dimensions, and dtype, shape and digest of any
    other. Of one that is no plain memory it returns the name of its class."""
    try:
        check_plain_memory(torch, tensor, "it")
    except UnsupportedArray:
        return type(tensor).__qualname__
    plain = tensor.detach()
    if plain.dim() == 0 and copyable_plain_memory(torch, plain) is plain:
        return f"{plain.dtype} {plain.item()!r}"
    content = cpu_tensor_to_broadcast(plain)
    data: Any = b""
    if content.nbytes:
        data = (ctypes.c_ubyte * content.nbytes).from_address(content.data_ptr())
    return f"{plain.dtype} {tuple(plain.shape)} {_state_digest(data)}"


def _state_digest(content: Any) -> str:
    """Returns 64 bits of BLAKE2b over bytes, as text."""
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _pack_state(value: Any, way: str, copies: bool = True) -> Any:
    """Returns a value in the types that ``torch.load`` takes.

    Args:
        value: The value.
        way: The way to it from the whole state, such as ``[1]['param_groups']``.
        copies: Whether the content of NumPy arrays is needed.
    """
    kind = type(value)
    if isinstance(value, torch.Tensor):
        _check_state_tensor(value, way)
        return value
    if kind is int and value.bit_length() > _PLAIN_INTEGER_BITS_MAX:
        return (_PACKED_MARK, "int", hex(value))
    if kind is int or kind in _PLAIN_TYPES:
        return value
    if kind in (list, tuple):
        packed = [_pack_state(item, f"{way}[{at}]", copies) for at, item in enumerate(value)]
        # A tuple of the caller that begins with the mark is packed once more.
        is_marked = kind is tuple and packed[:1] == [_PACKED_MARK] and type(value[0]) is str
        return (_PACKED_MARK, "tuple", packed) if is_marked else kind(packed)
    if kind in (dict, OrderedDict, Counter):
        return (_PACKED_MARK, kind.__name__, _pack_state_items(value, way, copies))
    if kind is defaultdict:
        factory = value.default_factory
        name = None if factory is None else getattr(factory, "__name__", "")
        if name is not None and _FACTORIES.get(name) is not factory:
            raise UnpackableValue(f"{way or 'it'} is a defaultdict whose factory is {factory!r}")
        return (_PACKED_MARK, "defaultdict", name, _pack_state_items(value, way, copies))
    if kind is deque:
        packed = [_pack_state(item, f"{way}[{at}]", copies) for at, item in enumerate(value)]
        return (_PACKED_MARK, "deque", value.maxlen, packed)
    if kind in (set, frozenset):
        return (_PACKED_MARK, kind.__name__, [_pack_state(item, way, copies) for item in value])
    return _pack_state_by_library(value, way, copies)


def _check_state_tensor(tensor: torch.Tensor, way: str) -> None:
    """Raises ``UnpackableValue`` for a tensor that is no plain memory, of a class that
    ``torch.load`` does not take, or with an attribute of another type. Classes that the user has
    declared safe pass."""
    try:
        check_plain_memory(torch, tensor, way or "it")
    except UnsupportedArray as error:
        raise UnpackableValue(str(error)) from error
    kind = type(tensor)
    if kind in _user_safe_state_types():
        return
    if kind not in (torch.Tensor, torch.nn.Parameter):
        raise UnpackableValue(f"{way or 'it'} is of type {kind.__qualname__}")
    for name, value in vars(tensor).items():
        # They are sent beside the tensor as they are.
        if type(value) not in (int, *_PLAIN_TYPES):
            text = f"the attribute {name} of {way or 'it'} is of type {type(value).__qualname__}"
            raise UnpackableValue(text)


def _pack_state_items(value: Any, way: str, copies: bool) -> list[tuple[Any, Any]]:
    """Returns packed keys and values as a list of pairs, because packed keys may be unhashable."""
    return [
        (
            _pack_state(key, f"{way} key {key!r}", copies),
            _pack_state(item, f"{way}[{key!r}]", copies),
        )
        for key, item in value.items()
    ]


def _pack_state_by_library(value: Any, way: str, copies: bool) -> Any:
    """Returns a packed value of NumPy, or as it is one whose class the user has declared safe for
    ``torch.load``. Raises ``UnpackableValue`` for any other."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and (isinstance(value, numpy.generic) or type(value) is numpy.ndarray):
        dtype = value.dtype
        # A dtype of objects, of records or of another library does not follow from its text.
        if not dtype.hasobject and dtype.names is None and numpy.dtype(dtype.str) == dtype:
            content = _state_content_tensor(value.tobytes()) if copies else None
            return (_PACKED_MARK, "numpy", dtype.str, _numpy_state_shape(numpy, value), content)
    elif type(value) in _user_safe_state_types():
        return value
    raise UnpackableValue(f"{way or 'it'} is of type {type(value).__qualname__}")


def _numpy_state_shape(numpy: Any, value: Any) -> list[int] | None:
    """Returns the shape of an array, or ``None`` for a number."""
    return list(value.shape) if isinstance(value, numpy.ndarray) else None


def _state_content_tensor(content: bytes) -> torch.Tensor:
    """Returns bytes as a tensor."""
    if not content:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _user_safe_state_types() -> set[Any]:
    """Returns the classes that the user gave to ``torch.serialization.add_safe_globals``."""
    listed: list[Any] = getattr(torch.serialization, "get_safe_globals", list)()
    return {entry[0] if isinstance(entry, tuple) else entry for entry in listed}


def _unpack_state(value: Any) -> Any:
    """Returns a packed value in its old type."""
    kind = type(value)
    if kind is list:
        return [_unpack_state(item) for item in value]
    if kind is not tuple:
        return value
    if len(value) > 1 and type(value[0]) is str and value[0] == _PACKED_MARK:
        return _UNPACKERS[value[1]](*value[2:])
    return tuple(_unpack_state(item) for item in value)


def _unpack_state_tuple(packed: list[Any]) -> Any:
    """Returns a tuple of the caller that begins with the mark."""
    return tuple(_unpack_state(item) for item in packed)


def _unpack_state_integer(text: str) -> Any:
    """Returns a long integer."""
    return int(text, 16)


def _unpack_state_dict(items: list[Any]) -> Any:
    """Returns a ``dict``."""
    return dict(_unpack_state(items))


def _unpack_state_ordered_dict(items: list[Any]) -> Any:
    """Returns an ``OrderedDict``."""
    return OrderedDict(_unpack_state(items))


def _unpack_state_counter(items: list[Any]) -> Any:
    """Returns a ``Counter``."""
    return Counter(dict(_unpack_state(items)))


def _unpack_state_defaultdict(name: str | None, items: list[Any]) -> Any:
    """Returns a ``defaultdict``."""
    return defaultdict(None if name is None else _FACTORIES[name], _unpack_state(items))


def _unpack_state_deque(maxlen: int | None, items: list[Any]) -> Any:
    """Returns a ``deque``."""
    return deque(_unpack_state(items), maxlen)


def _unpack_state_set(items: list[Any]) -> Any:
    """Returns a ``set``."""
    return set(_unpack_state(items))


def _unpack_state_frozenset(items: list[Any]) -> Any:
    """Returns a ``frozenset``."""
    return frozenset(_unpack_state(items))


def _unpack_state_numpy(dtype: str, shape: list[int] | None, content: torch.Tensor) -> Any:
    """Returns a NumPy number or array."""
    import numpy  # The package works without it.

    flat = numpy.frombuffer(content.numpy().tobytes(), dtype)
    return flat[0] if shape is None else flat.reshape(shape).copy()


#: The function that unpacks each kind of packed tuple, by the tuple's second item.
_UNPACKERS: dict[str, Callable[..., Any]] = {
    "tuple": _unpack_state_tuple,
    "int": _unpack_state_integer,
    "dict": _unpack_state_dict,
    "OrderedDict": _unpack_state_ordered_dict,
    "Counter": _unpack_state_counter,
    "defaultdict": _unpack_state_defaultdict,
    "deque": _unpack_state_deque,
    "set": _unpack_state_set,
    "frozenset": _unpack_state_frozenset,
    "numpy": _unpack_state_numpy,
}
