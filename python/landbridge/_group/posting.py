"""Posting collectives: slots in the arena, numbers, and the order of posts.

``Group`` calls it in the trainer's threads. One lock keeps posts in order; posts wait here while
the arena has no room or the gateway has enough collectives under way.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from .. import errors
from .._arguments import CollectiveOptions
from .._memory.arena import Arena, Block, overlap
from .._memory.arrays import Adapter, adapt
from .._operation import Delivery, Operation
from .._protocol.connection import Connection
from .._protocol.descriptor import CollectiveKind, Dtype, Op
from .._protocol.wire import Post, Request
from .._waiting import Latch, check_caller, check_process
from .state import Entry, GroupState, Slot

#: Collectives of one rank that may be under way; docs/protocol.md section 5.
POSTS_MAX = 256

#: The slot of a collective without data.
_EMPTY_SLOT = (0, 0)


class Poster:
    """The base of ``Group``: a rank that posts collectives from its arena."""

    def __init__(self, rank: int, world_size: int, arena: Arena) -> None:
        #: The number of this rank.
        self.rank = rank
        self._world_size = world_size
        self._arena = arena
        self._owner = os.getpid()
        self._posting = threading.RLock()
        # Whether the posting thread will wait for the collective itself, so that no other thread
        # need read for it.
        self._is_awaited = False
        self._state = GroupState()
        # Ends the connection of a group that nobody closes.
        weakref.finalize(self, GroupState.shut_down, self._state).atexit = False

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self._world_size

    def _wait_here(self, begin: Callable[[], Operation]) -> Any:
        """Begins a collective, reads in this thread until it is ready, and returns the result.

        The caller gets no operation to wait for free memory, so that is waited for as well.
        """
        with self._posting:
            self._is_awaited = True
            try:
                operation = begin()
            finally:
                self._is_awaited = False
        result = operation.wait()
        if operation.lies_in_arena:
            operation.wait_free()
        return result

    def _start(
        self, options: CollectiveOptions, array: Any, out: Any, dtype: str | None
    ) -> Operation:
        """Posts a collective with data.

        Args:
            options: Its arguments other than arrays.
            array: The contribution.
            out: The array for the result, or ``None`` for a new one.
            dtype: The element type of arrays whose library has no name for it.
        """
        self._check_caller()
        named = None if dtype is None else Dtype.named(dtype)
        source = adapt(array, named)
        target = None if out is None else adapt(out, named)
        _check_arrays(source, target, options, self._world_size)
        is_root = self.rank == options.root
        # A post always names two slots. The gateway ignores one that the collective does not use.
        contributes = is_root or options.kind != CollectiveKind.BROADCAST
        gets_result = is_root or options.kind != CollectiveKind.REDUCE
        with self._posting:
            self._state.check_usable()
            contribution, held = self._place_contribution(source, contributes)
            result, block = self._place_result(
                source, target if gets_result else None, contribution
            )
            slots = ((contribution, source.nbytes), (result, source.nbytes))
            self._await_room(slots)
            in_arena = None if isinstance(held[0], Block) else source
            wanted = None if target is None else (out, target)
            delivery = Delivery(source, wanted, block, in_arena) if gets_result else None
            operation = Operation(delivery, self)
            operation.lies_in_arena = in_arena is not None or block is None
            # The entry also holds the array that `out` is a view of.
            held = (*held, block, target and target.array)
            self._post(Entry(operation, slots, held), options, source)
        return operation

    def _start_barrier(self, options: CollectiveOptions) -> Operation:
        """Posts a collective without data."""
        self._check_caller()
        nothing = adapt(b"")
        with self._posting:
            operation = Operation(None, self)
            slots = (_EMPTY_SLOT, _EMPTY_SLOT)
            self._await_room(slots)
            self._post(Entry(operation, slots, ()), options, nothing)
        return operation

    def _place_contribution(
        self, source: Adapter, contributes: bool
    ) -> tuple[int, tuple[Any, ...]]:
        """Returns the offset of the contribution, and the objects that hold its memory."""
        offset = self._offset_of(source)
        if offset is not None:
            return offset, (source.array,)
        block = self._reserve(source.nbytes)
        if contributes:
            # If the connection ended meanwhile, a gateway that still runs may be sending from this
            # memory. No new connection begins before this thread has posted.
            self._state.check_usable()
            source.store(block)
        return block.offset, (block,)

    def _place_result(
        self, source: Adapter, target: Adapter | None, contribution: int
    ) -> tuple[int, Block | None]:
        """Returns the offset of the result, and its slot unless it is the caller's array."""
        offset = None if target is None else self._offset_of(target)
        given = (contribution, source.nbytes)
        if offset is not None and not overlap((offset, source.nbytes), given):
            return offset, None
        block = self._reserve(source.nbytes)
        return block.offset, block

    def _offset_of(self, adapter: Adapter) -> int | None:
        """Returns the offset of an array that lies in the arena, or ``None``."""
        address = adapter.address() if adapter.nbytes else None
        return None if address is None else self._arena.offset_of(address, adapter.nbytes)

    def _reserve(self, nbytes: int) -> Block:
        """Takes a slot, and waits for slots of collectives under way.

        Raises:
            ArenaFull: The arena has no room, and no collective will free any.
        """
        block: list[Block] = []

        def found() -> bool:
            taken = self._arena.take(nbytes)
            if taken is not None:
                block.append(taken)
            return taken is not None or self._state.is_idle

        self._state.wait_until(found, None)
        if not block:
            # A failure's traceback and its frames form a cycle that may hold arrays.
            gc.collect()
            self._state.wait_until(found, None)
        if not block:
            used, total = self._arena.used_bytes, self._arena.nbytes
            raise errors.ArenaFull(
                f"no room for {nbytes} bytes in the arena: {used} of {total} are in use by arrays "
                "and results not fetched; connect with a larger `arena`"
            )
        return block[0]

    def _await_room(self, slots: tuple[Slot, Slot]) -> None:
        """Waits until the gateway takes another post with these slots."""
        entries = self._state.entries
        if not entries:
            return

        def has_room() -> bool:
            taken = (entry.slots for entry in entries.values())
            return len(entries) < POSTS_MAX and not any(_conflict(other, slots) for other in taken)

        self._state.wait_until(has_room, None)

    def _post(self, entry: Entry, options: CollectiveOptions, source: Adapter) -> None:
        def register() -> tuple[Connection, Request]:
            connection, epoch, sequence = self._state.register(entry)
            return connection, Post(
                epoch=epoch,
                sequence=sequence,
                op=options.op,
                dtype=source.dtype,
                elements=source.elements,
                layout_hash=options.layout,
                operation=options.kind,
                root=options.root,
                weight=options.weight,
                timeout_ns=options.timeout_ns,
                contribution_offset=entry.slots[0][0],
                result_offset=entry.slots[1][0],
            )

        self._send(register)

    def _send(self, register: Callable[[], tuple[Connection, Request]]) -> None:
        """Registers something with the state and sends its request."""
        state = self._state
        connection = state.connection
        try:
            connection, request = register()
            connection.send(request)
            if not self._is_awaited:
                connection.wake_reader()
        except errors.LandbridgeError:
            raise  # Nothing was registered. Some of these errors are an `OSError` as well.
        except OSError as error:
            # The operation or commit that was registered fails with this reason.
            state.end(connection, f"connection to the gateway ended: {error}")
        except BaseException:
            # Half a message may be sent, or a number registered without its post.
            state.end(connection, "a post was interrupted")
            raise

    def _read_until(self, latch: Latch, timeout_s: float | None) -> None:
        """Reads messages until ``latch`` opens; see ``_operation.Reader``."""
        self._state.read_until(latch, timeout_s)

    def _check_caller(self) -> None:
        """Raises ``InCallback`` or ``ForkedProcess`` where the caller must not post or wait."""
        check_caller()
        check_process(self._owner)
        self._state.check_handler()

    def _after_fork(self) -> None:
        """Makes the group unusable, but safe to drop, in a forked process."""
        self._posting = threading.RLock()
        self._arena.after_fork()
        self._state.after_fork()


def _check_arrays(
    source: Adapter, target: Adapter | None, options: CollectiveOptions, world_size: int
) -> None:
    if options.root >= world_size:
        text = f"root {options.root}: the fabric has ranks 0 to {world_size - 1}"
        raise errors.ConfigError(text)
    if target is not None:
        target.check_writable()
        if (target.dtype, target.shape) != (source.dtype, source.shape):
            want = f"{source.dtype.label} of shape {tuple(source.shape)}"
            got = f"{target.dtype.label} of shape {tuple(target.shape)}"
            raise errors.UnsupportedArray(f"`out` is {got}, the array {want}; they must be alike")
    if options.op == Op.AVG and not source.dtype.is_float:
        text = f"there is no average of {source.dtype.label}; use op='sum', or floats"
        raise errors.UnsupportedArray(text)


def _conflict(one: tuple[Slot, Slot], other: tuple[Slot, Slot]) -> bool:
    """Returns whether a collective writes where the other reads or writes. Both may read."""
    (given, result), (contribution, out) = one, other
    return overlap(result, contribution) or overlap(result, out) or overlap(given, out)
