"""Collectives of whole arrays, barriers and commits of a group.

Groups inherit them beside the collectives of blocks.
"""

from __future__ import annotations

from typing import Any, TypeVar

from .._arguments import check_integer_argument, check_timeout_argument
from .._memory import arrays
from .._operations.commit import Commit
from .._operations.operation import DEFAULT_TIMEOUT_S, Operation
from .._protocol.collective_types import CollectiveKind, Op
from .._protocol.connection import Connection
from .._protocol.wire import Commit as CommitRequest
from .._protocol.wire import Request
from .blocks import BlockCollectives

#: The type of a group that a ``with`` statement closes.
C = TypeVar("C", bound="WholeArrayCollectives")


class WholeArrayCollectives(BlockCollectives):
    """The collectives of whole arrays, barriers and commits of a group."""

    @property
    def epoch(self) -> int:
        """The number of the current epoch, as far as this rank knows; 0 before the first one."""
        return self._state.epoch

    def close(self) -> None:
        """Ends this rank's part in the group."""
        raise NotImplementedError

    def __enter__(self: C) -> C:
        """Returns the group, which ``with`` closes at the end of its block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the group, whether or not the block has failed."""
        self.close()

    def empty(self, shape: arrays.Shape, dtype: Any) -> Any:
        """Returns a new array in the arena. Collectives use such arrays without a copy.

        The memory is free again when the array and all its views are gone. After ``GatewayLost``
        do not write to a new array before ``recover`` has returned: a gateway that still runs may
        be sending from its memory.

        Args:
            shape: The shape, or the length. The content is undefined.
            dtype: A torch dtype for a tensor; one of the names ``f32 f64 f16 bf16 i8 i16 i32 i64
                u8 u16 u32 u64 bool`` for a memoryview; anything else that NumPy takes as a dtype
                for an ndarray.

        Raises:
            ArenaFull: The arena has no room.
            UnsupportedArray: The shape or the dtype is not supported.
        """
        self._check_may_wait()
        slot = self._reserve_slot(arrays.array_nbytes(shape, dtype))
        return arrays.array_over_slot(slot, shape, dtype)

    def all_reduce(
        self,
        array: Any,
        op: str = "avg",
        *,
        weight: float = 1.0,
        out: Any = None,
        dtype: str | None = None,
        layout: int = 0,
        flat: bool = False,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Any:
        """Combines the arrays of all ranks, element by element, and waits for the result.

        On return ``array`` and ``out`` may be written again, also those from ``empty``.

        Args:
            array: The contribution: a torch tensor or a DLPack array on the CPU, a NumPy or JAX
                array, or a buffer. Its elements are f32, f64, f16, bf16, bool, or signed or
                unsigned integers of 8 to 64 bits. Its shape is the same on all ranks.
            op: The reduction: ``avg`` of floats alone; ``sum``, ``min``, ``max`` and ``prod``;
                ``band``, ``bor`` and ``bxor`` of integers and bool. Integers wrap. As in NumPy, the
                sum of bool is their logical or and the product their logical and.
            weight: The weight of this rank in an average, such as its number of samples, up to
                1e290. One of 0 leaves its array out. Where all weights are 0 the result is NaN.
            out: An array for the result, of the same kind, dtype and shape. It may be ``array``
                itself. The default is a new array.
            dtype: ``"bf16"`` for an array of 16-bit integers that hold bf16.
            layout: A hash of anything else that the ranks must agree on. Ranks with different
                hashes raise ``RanksDisagree``.
            flat: Whether the array counts as one-dimensional. All ranks then need only as many
                elements, in the order of rows. Without it, ranks whose shapes differ raise
                ``RanksDisagree``.
            timeout: How long to wait for the other ranks to post, in seconds.

        Returns:
            The result, bit for bit the same on every rank.

        Raises:
            UnsupportedArray: An array cannot take part.
            ConfigError: Another argument cannot be used.
            ArenaFull: The arena has no room.
            CollectiveFailed: The collective failed. The contribution is intact.
            Closed: The group was closed.
        """
        return self._start_and_wait(
            lambda: self.all_reduce_async(
                array,
                op,
                weight=weight,
                out=out,
                dtype=dtype,
                layout=layout,
                flat=flat,
                timeout=timeout,
            )
        )

    def all_reduce_async(
        self,
        array: Any,
        op: str = "avg",
        *,
        weight: float = 1.0,
        out: Any = None,
        dtype: str | None = None,
        layout: int = 0,
        flat: bool = False,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Operation:
        """Starts an ``all_reduce``, and returns before the result is ready.

        ``array`` may be written again when this returns, unless it is from ``empty``: see
        ``Operation``.

        Args:
            array: As for ``all_reduce``, like all other arguments.

        Returns:
            The operation. Its ``wait`` returns the result, and raises ``CollectiveFailed``.

        Raises:
            UnsupportedArray: An array cannot take part.
            ConfigError: Another argument cannot be used.
            ArenaFull: The arena has no room.
            GatewayLost, EpochEnded, Closed: Nothing can be posted.
        """
        kind, named = CollectiveKind.ALL_REDUCE, Op.from_name(op)
        options = self._check_arguments(
            kind, op=named, weight=weight, layout=layout, flat=flat, timeout=timeout
        )
        return self._start_collective(options, array, out, dtype)

    def reduce(
        self,
        array: Any,
        root: int = 0,
        op: str = "avg",
        *,
        weight: float = 1.0,
        out: Any = None,
        dtype: str | None = None,
        layout: int = 0,
        flat: bool = False,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Any:
        """Combines the arrays of all ranks on one rank, and waits until this rank is done.

        On ranks other than ``root`` it returns when their contribution needs no retransmission.

        Args:
            array: The contribution, as for ``all_reduce``, like all arguments not named here.
            root: The rank that gets the result.
            out: As for ``all_reduce``. Ranks other than ``root`` leave it unchanged.

        Returns:
            The result on ``root``, and ``None`` on other ranks.

        Raises:
            LandbridgeError: As ``all_reduce``.
        """
        return self._start_and_wait(
            lambda: self.reduce_async(
                array,
                root,
                op,
                weight=weight,
                out=out,
                dtype=dtype,
                layout=layout,
                flat=flat,
                timeout=timeout,
            )
        )

    def reduce_async(
        self,
        array: Any,
        root: int = 0,
        op: str = "avg",
        *,
        weight: float = 1.0,
        out: Any = None,
        dtype: str | None = None,
        layout: int = 0,
        flat: bool = False,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Operation:
        """Starts a ``reduce``, and returns the operation before the result is ready. Its ``wait``
        returns the result on ``root``."""
        kind, named = CollectiveKind.REDUCE, Op.from_name(op)
        options = self._check_arguments(
            kind,
            root=root,
            op=named,
            weight=weight,
            layout=layout,
            flat=flat,
            timeout=timeout,
        )
        return self._start_collective(options, array, out, dtype)

    def broadcast(
        self,
        array: Any,
        root: int = 0,
        *,
        out: Any = None,
        dtype: str | None = None,
        layout: int = 0,
        flat: bool = False,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Any:
        """Gives every rank the array of one rank, bit for bit, and waits for the result.

        Args:
            array: The data on ``root``, of any dtype that has plain bytes: also complex numbers,
                float8 and structures. On other ranks it says kind, dtype and shape, and its
                elements are not read.
            root: The rank with the data.
            out: As for ``all_reduce``, like ``dtype``, ``layout``, ``flat`` and ``timeout``.

        Returns:
            The array of ``root``. In the region of ``root`` it may come before other ranks have
            begun. If they disagree later, the next call raises ``RanksDisagree``.

        Raises:
            LandbridgeError: As ``all_reduce``.
        """
        return self._start_and_wait(
            lambda: self.broadcast_async(
                array, root, out=out, dtype=dtype, layout=layout, flat=flat, timeout=timeout
            )
        )

    def broadcast_async(
        self,
        array: Any,
        root: int = 0,
        *,
        out: Any = None,
        dtype: str | None = None,
        layout: int = 0,
        flat: bool = False,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Operation:
        """Starts a ``broadcast``, and returns the operation before the result is ready. Its
        ``wait`` returns the result."""
        kind = CollectiveKind.BROADCAST
        options = self._check_arguments(kind, root=root, layout=layout, flat=flat, timeout=timeout)
        return self._start_collective(options, array, out, dtype)

    def barrier(self, timeout: float = DEFAULT_TIMEOUT_S, *, layout: int = 0) -> None:
        """Waits until every rank has called ``barrier``. The call takes no memory of the arena.

        Args:
            timeout: How long to wait for the other ranks, in seconds.
            layout: A hash that the ranks must agree on, as for ``all_reduce``.

        Raises:
            CollectiveFailed: A rank did not come, or has another ``layout``.
            ConfigError, Closed: As ``all_reduce``.
        """
        self._start_and_wait(lambda: self.barrier_async(timeout, layout=layout))

    def barrier_async(self, timeout: float = DEFAULT_TIMEOUT_S, *, layout: int = 0) -> Operation:
        """Starts a ``barrier``, and returns the operation before all ranks have come. Its ``wait``
        returns when they have."""
        options = self._check_arguments(CollectiveKind.BARRIER, layout=layout, timeout=timeout)
        return self._start_barrier(options)

    def commit(self, step: int, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Waits until every region has everything posted for a step.

        It covers all collectives that this rank posted since its last commit. Once it returns, no
        failure takes a region back behind the step. Ranks that commit after the same collective
        must name the same step, and gateways compare them. A commit without collectives of its own
        is not compared: ``agree`` compares steps then, and so does ``resume``.

        Args:
            step: The trainer's number of the step.
            timeout: How long to wait for the other ranks, in seconds.

        Raises:
            RanksDisagree: Another rank has committed the same collectives as another step. The
                epoch has ended. A rank whose commit was confirmed before hears it at its next call.
            CollectiveFailed: The step will not become known to be complete; see
                ``committed_step``.
            ConfigError: Weights were changed without ``landbridge.torch.FlatGrads.wait``, or as
                ``all_reduce``.
            Closed: As ``all_reduce``.
        """
        self.commit_async(step, timeout=timeout).wait()

    def commit_async(self, step: int, *, timeout: float = DEFAULT_TIMEOUT_S) -> Commit:
        """Starts a ``commit``, and returns before the step is committed."""
        self._check_may_wait()
        step = check_integer_argument("step", step, 1 << 64)
        timeout_ns = check_timeout_argument(timeout)
        self._check_steps()
        commit = Commit(step, self)

        def register_commit() -> tuple[Connection, Request]:
            """Registers the commit, and returns the connection and the request to send."""
            connection, epoch = self._state.register_commit(commit)
            return connection, CommitRequest(epoch, step, timeout_ns)

        with self._posting:
            self._register_and_send(register_commit)
        return commit

    @property
    def committed_step(self) -> int | None:
        """The last step known to be complete in every region.

        After ``recover`` it is the step that the gateways agree on, whatever ``Commit.wait``
        raised. It is ``None`` when no step is known, as after all gateways were started again.
        """
        return self._state.committed
