"""The order of c10d's collectives on one group of ranks, beside its sends.

Two threads serve the collectives. ``landbridge-post`` posts collectives in the order in which they
were called. ``landbridge-finish`` waits for them in the same order, and copies results. So a call
returns at once, and a collective ends without anybody waiting for it. Two queues without a bound
connect caller and threads; the arena bounds the pieces between the threads. Before callbacks run
another thread of the same name takes over.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ... import errors
from ..._group.subgroup import ParentGroup
from ..._memory.host_limits import start_thread_within_host_limits
from ..._operations.finish_threads import FinishThreads, finish_in_turn
from ..._operations.operation import Operation
from ..._operations.waiting import check_not_waiting_after_fork, check_not_waiting_at_end
from .arena_room import ArenaRoom, wait_for_arena_piece
from .exchange_work import ExchangeWork, exchange_breakage
from .flat_tensors import FlatTensor
from .send_exchange import SendExchange, SendPlace

#: The layout hash of the barrier that a rank posts where it could not post a collective, so that
#: other ranks fail soon. It has the bytes of "givenup!". No other post has it.
_GIVEN_UP_LAYOUT = 0x6769_7665_6E75_7021

#: The type of a function that posts one collective and returns the operation.
BeginPiece = Callable[[], Operation]
#: The type of a function that takes a result as soon as its piece has ended well.
TakePiece = Callable[[], None]
#: The type of a function that posts all pieces of a collective: it hands each piece to the function
#: that it is given, and may hand over a ``TakePiece`` behind it.
Plan = Callable[[Callable[..., None]], None]


class _Call(NamedTuple):
    """A collective that waits to be posted."""

    work: ExchangeWork
    plan: Plan
    #: Whether results are written to tensors that were made in inference mode.
    is_inference: bool


class _Piece(NamedTuple):
    """A piece under way, and what takes its result early."""

    operation: Operation
    work: ExchangeWork
    take: TakePiece | None


class _End(NamedTuple):
    """The end of a call whose pieces are all posted, or of which one could not be."""

    work: ExchangeWork
    failure: Exception | None


class Exchange:
    """The collectives of one group of ranks, in the order of their calls, and its sends.

    Attributes:
        group: The ranks. No other exchange has this group.
        piece_bytes: The longest contribution or result of a piece, the same on all ranks.
        call_count: The number of collectives that were called so far.
    """

    def __init__(self, group: ParentGroup, room: ArenaRoom) -> None:
        """Starts the threads of an exchange of this group, whose pieces are in ``room``. Raises
        ``LimitReached`` where the system gives no thread."""
        self.group = group
        self.piece_bytes = room.piece_bytes
        self.call_count = 0
        self._room = room
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        # Pieces that are under way, each followed by the others of its call and its end.
        self._posted: queue.SimpleQueue[_Piece | _End | None] = queue.SimpleQueue()
        # Held while a piece is posted, so that an abort finds it or prevents it.
        self._posting = threading.Lock()
        self._lock = threading.Lock()
        self._is_closed = self._is_aborted = False
        # Everything under way, guarded by the second lock.
        self._works: set[ExchangeWork] = set()
        # The works of a batch that has begun and not ended.
        self._batch: list[ExchangeWork] | None = None
        self._pieces: set[Operation] = set()
        # What was under way at an abort.
        self._left_under_way: list[Operation] = []
        self._breakage: errors.Closed | None = None
        self._failure: Exception | None = None
        self._owner = os.getpid()
        self._post_thread = threading.Thread(
            target=self._run_post_thread, name="landbridge-post", daemon=True
        )
        self._finishing = FinishThreads("landbridge-finish", self._finish_next, self._break_off)
        self._sends = SendExchange(group, room)
        room.add_group(self)
        start_thread_within_host_limits(self._post_thread)
        self._finishing.start()

    def start_call(
        self,
        outputs: Sequence[FlatTensor],
        plan: Plan,
        passed: Sequence[torch.Tensor] = (),
        told: str = "",
    ) -> ExchangeWork:
        """Starts a collective, and returns its work before anything is posted.

        Args:
            outputs: The tensors that get results. They are copied back once all pieces have ended.
            plan: The function that posts the pieces.
            passed: The tensors on which ranks agree, for errors.
            told: What these tensors are, for errors, where that is known.

        Raises:
            Closed: The process group was destroyed, or the interpreter is ending.
            ForkedProcess: This process was forked from the one that made the group.
        """
        self._check_may_start()
        work = ExchangeWork(outputs, passed, told)
        is_inference = any(output.tensor.is_inference() for output in outputs)
        with self._lock:
            if self._is_closed:
                raise self._breakage or errors.Closed("the process group was destroyed")
            self.call_count += 1
            self._works.add(work)
            if self._batch is not None:
                self._batch.append(work)
            self._calls.put(_Call(work, plan, is_inference))
        return work

    def start_send(self, place: SendPlace, tensor: FlatTensor, timeout_s: float) -> ExchangeWork:
        """Starts a send or a receive as ``SendExchange.start_send``, beside the collectives."""
        self._check_may_start()
        work = self._sends.start_send(place, tensor, timeout_s)
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _check_may_start(self) -> None:
        """Raises ``Closed`` or ``ForkedProcess`` where the threads do not run. Nothing is locked
        before, since a forked process has the locks of threads that it does not have."""
        check_not_waiting_at_end()
        check_not_waiting_after_fork(self._owner)

    def is_forked(self) -> bool:
        """Returns whether this process was forked from the one that made the group."""
        return os.getpid() != self._owner

    def start_batch(self) -> None:
        """Begins a batch of calls. A batch that has not ended is forgotten. Raises as
        ``start_call``."""
        self._check_may_start()
        self._batch = []

    def end_batch(self) -> ExchangeWork:
        """Ends a batch. Returns a work that ends with the last of the batch, and fails as the first
        of it that failed. Raises as ``start_call``."""
        self._check_may_start()
        batch, self._batch = self._batch or [], None
        work = ExchangeWork([])
        work.finish_with(batch)
        return work

    def close(self) -> None:
        """Waits until all calls have ended, each within its timeout, and leaves the group. While
        the interpreter ends its threads have stopped, and the connection ends with the process.
        In a forked process it does nothing."""
        if sys.is_finalizing() or self.is_forked():
            return
        self._end_calls()
        self._sends.end_calls()
        self._post_thread.join()
        self._finishing.join()
        self._sends.join()
        self.group.close()

    def abort(self) -> None:
        """Fails everything under way with ``Closed`` at once, and leaves the group. Nothing writes
        to the caller's tensors after it. Other ranks of the group raise
        ``RankLost`` or ``RanksDisagree`` as soon as they wait for this one.

        Does nothing at the interpreter's end, when a thread that was stopped may hold the locks,
        nor in a forked process.
        """
        if not (sys.is_finalizing() or self.is_forked()):
            self._fail_everything(errors.Closed("the process group was aborted"))

    def _fail_everything(self, failure: errors.Closed) -> None:
        """Fails everything under way, and leaves the group."""
        with self._posting, self._lock:
            was_closed = self._is_closed
            self._is_closed = self._is_aborted = True
            works, pieces = list(self._works), list(self._pieces)
        for piece in pieces:
            piece.discard_result()
        works += self._sends.abort(failure)
        for work in works:
            work.end(failure)
        finish_in_turn("landbridge-finish", [work.run_callbacks for work in works])
        try:
            self._left_under_way = [*pieces, *self._give_up()]
            self.group.close()
        finally:
            self._room.wake_waiting()
            if not was_closed:
                self._calls.put(None)

    def _end_calls(self) -> None:
        """Takes no more calls, and lets the threads end after those that were made."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._calls.put(None)

    def _break_off(self, error: Exception) -> None:
        """Fails everything under way and all calls that follow, after an error that ended one of
        the threads, so that nobody waits for it."""
        self._breakage = exchange_breakage(error)
        # Works have ended before anything of it can raise.
        with contextlib.suppress(Exception):
            self._fail_everything(self._breakage)
        self._room.remove_user(self)

    def _run_post_thread(self) -> None:
        """Runs the thread that posts. Whatever ends it early breaks off the exchange."""
        try:
            self._post_calls()
        except Exception as error:
            self._break_off(error)
        self._posted.put(None)

    def _post_calls(self) -> None:
        """Posts the pieces of calls, until a ``None`` ends them."""
        while True:
            call = self._calls.get()
            if call is None:
                return
            failure: Exception | None = None
            try:
                with torch.inference_mode(call.is_inference):
                    call.plan(functools.partial(self._post_piece, call.work))
            except Exception as error:
                failure = error
                # After an end of the epoch they have heard already.
                if not isinstance(failure, errors.CollectiveFailed):
                    self._give_up()
            self._posted.put(_End(call.work, failure))
            del call, failure

    def _post_piece(
        self, work: ExchangeWork, begin: BeginPiece, take: TakePiece | None = None
    ) -> None:
        """Posts one piece of a work. Waits for earlier ones while the arena has no room."""

        def begin_unless_aborted(_: Exchange) -> Operation:
            """Posts the piece, and notes it."""
            with self._posting:
                if self._is_aborted:
                    raise errors.Closed("the process group was aborted")
                operation = begin()
                with self._lock:
                    self._pieces.add(operation)
            return operation

        begun = self._room.begin_piece(
            lambda: (self,), begin_unless_aborted, lambda: self._is_aborted
        )
        assert begun is not None, "this exchange has a piece to post"
        self._posted.put(_Piece(begun[1], work, take))

    def _give_up(self) -> list[Operation]:
        """Posts another collective than the one for which the other ranks wait, so that they hear
        at once that this rank could not post it. Returns what is under way by that."""
        with contextlib.suppress(errors.LandbridgeError):
            return [self.group.barrier_async(layout=_GIVEN_UP_LAYOUT)]
        return []

    def _finish_next(self) -> bool:
        """Waits for a piece, or ends the work of a call behind its last piece. Returns whether more
        follow."""
        posted = self._posted.get()
        if posted is None:
            self._room.remove_user(self)
            if self._is_aborted:
                self._leave_aborted_group()
            return False
        if isinstance(posted, _End):
            failure, self._failure = self._failure or posted.failure, None
            posted.work.end(failure)
            with self._lock:
                self._works.discard(posted.work)
            # Another thread leads from its callbacks on.
            posted.work.run_callbacks()
        else:
            ended = wait_for_arena_piece(posted.operation)
            self._failure = self._failure or ended
            if posted.take is not None and self._failure is None:
                self._failure = posted.work.take_piece(posted.take)
            with self._lock:
                self._pieces.discard(posted.operation)
            # The memory of results is free once nothing refers to them.
            del posted, ended
            self._room.end_piece(self)
        return True

    def _leave_aborted_group(self) -> None:
        """Leaves the group as soon as nothing of this rank is under way in it."""
        for operation in self._left_under_way:
            operation.wait_free()
        self.group.close()
