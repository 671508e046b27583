"""The sends and receives of c10d on one group of ranks.

The sends of one rank to another with one tag are a series. Calls of a series are posted in their
order; none waits for another series or for a collective, and each ends as soon as it is done. A
thread ``landbridge-send`` for each other rank posts, because the first post waits for a round trip.
One thread ``landbridge-sent`` copies results. The arena bounds the pieces between the threads.
"""

from __future__ import annotations

import collections
import functools
import queue
import threading
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ... import errors
from ..._group.collective_poster import hash_posted_layout
from ..._group.subgroup import ParentGroup
from ..._memory.host_limits import start_thread_within_host_limits
from ..._operations.finish_threads import FinishThreads, finish_in_turn
from ..._operations.operation import Operation
from .arena_room import ArenaRoom, wait_for_arena_piece
from .exchange_work import ExchangeWork, exchange_breakage
from .flat_tensors import FlatTensor

#: 4: the longest piece of a send is a quarter of the longest piece of a collective, so that many
#: series have room for one.
_PIECES_PER_COLLECTIVE_PIECE = 4


class SendPlace(NamedTuple):
    """The series of a send, as one of its two ranks sees it."""

    #: The other rank, by its number in the group.
    peer: int
    #: Whether this rank sends; else it receives.
    is_sender: bool
    tag: int


class _SendCall:
    """A send or a receive of c10d, in pieces. The lock of the exchange guards what changes."""

    def __init__(
        self,
        series: _SendSeries,
        work: ExchangeWork,
        tensor: FlatTensor,
        timeout_s: float,
        piece_bytes: int,
    ) -> None:
        """Makes the call, which counts in its series. Its pieces have at most ``piece_bytes``
        bytes, and each waits for the other rank for ``timeout_s`` seconds."""
        self.series = series
        self.work = work
        self._tensor = tensor
        self._count = tensor.tensor.numel()
        # The most elements of a piece.
        self._step = max(piece_bytes // tensor.tensor.element_size(), 1)
        self._is_inference = tensor.tensor.is_inference()
        self._timeout_s = timeout_s
        # Both ranks count their calls alike, also those that fail. So no piece is received as one
        # of another call, or as another one of its own, where only one rank has posted some.
        self._layout = hash_posted_layout(series.count_call(), (self._count,))
        #: The place of the next piece.
        self.begin = 0
        #: The pieces under way.
        self.pieces: set[Operation] = set()
        #: Whether the gateway uses the tensor itself.
        self.lies_in_arena = False
        #: Whether no piece follows, and whether the work has ended.
        self.is_posted = self.is_ended = False
        self.failure: Exception | None = None

    def post_piece(self, group: ParentGroup) -> Operation:
        """Posts the next piece."""
        peer, is_sender, tag = self.series.place
        layout = hash_posted_layout(self._layout, (self.begin,))
        with torch.inference_mode(self._is_inference):
            piece = self._tensor.piece(self.begin, min(self.begin + self._step, self._count))
            if is_sender:
                start = functools.partial(group.send_async, piece, peer)
            else:
                start = functools.partial(group.receive_async, piece, peer, out=piece)
            return start(tag=tag, layout=layout, timeout=self._timeout_s)

    def note_posted(self, operation: Operation) -> None:
        """Notes that a piece is under way."""
        self.begin += self._step
        self.pieces.add(operation)
        self.lies_in_arena |= operation.lies_in_arena
        if self.begin >= self._count:
            self.note_all_posted()
        if self.is_ended:
            operation.discard_result()

    def note_all_posted(self) -> None:
        """Notes that no piece of the call follows, so that the next call of the series does."""
        if not self.is_posted:
            self.is_posted = True
            self.series.unposted.remove(self)

    def note_failure(self, failure: Exception) -> None:
        """Notes that a piece failed or could not be posted. The series ends where the two ranks may
        have different places in it."""
        if not self.is_ended:
            self.failure = self.failure or failure
        self.note_all_posted()
        is_told = isinstance(failure, errors.CollectiveFailed)
        if isinstance(failure, errors.RanksDisagree) or not is_told or self._count > self._step:
            self.series.fail(failure)

    def end_if_done(self) -> bool:
        """Returns whether the work ends now, and notes that it does. After a failure nothing more
        is written to the tensor."""
        is_failed = self.failure is not None and not self.lies_in_arena
        if self.is_ended or not (is_failed or self.is_posted and not self.pieces):
            return False
        self.is_ended = True
        self.series.open.discard(self)
        for piece in self.pieces:
            piece.discard_result()
        return True


class _SendSeries:
    """The calls of one series. The lock of the exchange guards it."""

    def __init__(self, place: SendPlace) -> None:
        """Makes a series without calls."""
        self.place = place
        #: Calls with pieces to post, in their order.
        self.unposted: collections.deque[_SendCall] = collections.deque()
        #: Calls that have not ended.
        self.open: set[_SendCall] = set()
        #: The failure after which the two ranks may have different places.
        self.failure: Exception | None = None
        self._calls = 0

    def count_call(self) -> int:
        """Returns the number of the next call in the series, from 0 on."""
        self._calls += 1
        return self._calls - 1

    def fail(self, failure: Exception) -> None:
        """Ends the series, with all its calls that have not ended."""
        self.failure = self.failure or failure
        for call in self.open:
            call.failure = call.failure or self._end_error()
            call.note_all_posted()

    def check_usable(self) -> None:
        """Raises ``EpochEnded`` after the end of the series."""
        if self.failure is not None:
            raise self._end_error()

    def _end_error(self) -> errors.EpochEnded:
        """Returns the error of calls after the one whose failure has ended the series."""
        peer, is_sender, tag = self.place
        what = f"send to rank {peer}" if is_sender else f"receive from rank {peer}"
        text = f"an earlier {what} with tag {tag} failed ({self.failure}); contribution intact"
        text = f"{text}; destroy this process group on both ranks, and make it again"
        return errors.EpochEnded(text)


class SendExchange:
    """The sends and receives of one group of ranks."""

    def __init__(self, group: ParentGroup, room: ArenaRoom) -> None:
        """Prepares sends; threads start with the first of them.

        Args:
            group: The ranks.
            room: The room of the arena.
        """
        self._group = group
        self._room = room
        self._finishing = FinishThreads("landbridge-sent", self._finish_next, self._break_off)
        self._piece_bytes = max(room.piece_bytes // _PIECES_PER_COLLECTIVE_PIECE, 1)
        # Pieces that are ready or have failed, and calls that end; `None` ends the threads that
        # take them.
        self._ended: queue.SimpleQueue[tuple[_SendCall, Operation] | _SendCall | None]
        self._ended = queue.SimpleQueue()
        self._lock = threading.Lock()
        # The lock guards everything below. It is taken after the lock of the room.
        self._is_closed = self._is_aborted = self._has_finish_thread = False
        # The error of calls after the end.
        self._end = errors.Closed("the process group was destroyed")
        self._post_threads: list[threading.Thread] = []
        self._series: dict[SendPlace, _SendSeries] = {}
        # The series with pieces to post, of each rank that has a thread.
        self._waiting: dict[int, dict[_SendSeries, None]] = {}
        self._calls: set[_SendCall] = set()

    def start_send(self, place: SendPlace, tensor: FlatTensor, timeout_s: float) -> ExchangeWork:
        """Starts a send or a receive, and returns its work before anything is posted.

        Args:
            place: The series.
            tensor: The tensor that is sent, or that gets the elements.
            timeout_s: How long each piece waits for the other rank, in seconds.

        Raises:
            ConfigError: There is no such rank or tag.
            Closed: The process group was destroyed.
        """
        name = "dst" if place.is_sender else "src"
        self._group.check_send_arguments(name, place.peer, place.tag)
        outputs = [] if place.is_sender else [tensor]
        work = ExchangeWork(outputs, [tensor.tensor])
        with self._lock:
            if self._is_closed:
                raise self._end
            self._start_threads(place.peer)
            series = self._series.get(place)
            if series is None:
                series = self._series[place] = _SendSeries(place)
            call = _SendCall(series, work, tensor, timeout_s, self._piece_bytes)
            series.unposted.append(call)
            series.open.add(call)
            self._waiting[place.peer][series] = None
            self._calls.add(call)
        self._room.wake_waiting()
        return work

    def end_calls(self) -> None:
        """Takes no more calls, and lets the threads end after those that were made."""
        with self._lock:
            self._is_closed = True
            self._end_threads_if_done()
        self._room.wake_waiting()

    def join(self) -> None:
        """Waits until all threads but the caller have ended."""
        for thread in list(self._post_threads):
            thread.join()
        self._finishing.join()

    def abort(self, failure: errors.Closed) -> list[ExchangeWork]:
        """Takes no more calls, which fail from now on. Returns the works of those under way, which
        the caller fails. The other rank of a send hears of it when this rank has left the group, or
        by its timeout."""
        with self._lock:
            self._is_closed = self._is_aborted = True
            self._end = failure
            calls = list(self._calls)
            self._calls.clear()
            for waiting in self._waiting.values():
                waiting.clear()
            self._end_threads_if_done()
            pieces = [piece for call in calls for piece in call.pieces]
        for piece in pieces:
            piece.discard_result()
        self._leave_room()
        return [call.work for call in calls]

    def _start_threads(self, peer: int) -> None:
        """Starts the thread for a rank, and the one for results, unless they run. The caller holds
        the lock."""
        if not self._has_finish_thread:
            self._finishing.start()
            self._has_finish_thread = True
        if peer not in self._waiting:
            run = functools.partial(self._run_post_thread, peer)
            thread = threading.Thread(target=run, name="landbridge-send", daemon=True)
            start_thread_within_host_limits(thread)
            self._post_threads.append(thread)
            self._waiting[peer] = {}

    def _break_off(self, error: Exception) -> None:
        """Fails everything under way and all sends that follow, after an error that ended one of
        the threads, so that nobody waits for it."""
        breakage = exchange_breakage(error)
        works = self.abort(breakage)
        for work in works:
            work.end(breakage)
        finish_in_turn("landbridge-sent", [work.run_callbacks for work in works])
        self._room.wake_waiting()

    def _run_post_thread(self, peer: int) -> None:
        """Runs the thread for one other rank. Whatever ends it early breaks off all sends."""
        try:
            self._post_calls(peer)
        except Exception as error:
            self._break_off(error)

    def _post_calls(self, peer: int) -> None:
        """Posts the pieces for one other rank, until no more follow."""
        chosen: list[_SendCall] = []

        def begin(series: _SendSeries) -> Operation:
            """Posts the next piece of a series."""
            chosen.clear()
            with self._lock:
                if self._is_aborted or not series.unposted:
                    # An abort or a failure has ended its calls since it was chosen.
                    raise errors.Closed("the process group was aborted")
                chosen.append(series.unposted[0])
                series.check_usable()
            return chosen[0].post_piece(self._group)

        waiting = functools.partial(self._waiting_series, peer)
        is_over = functools.partial(self._has_posted_all, peer)
        while True:
            try:
                posted = self._room.begin_piece(waiting, begin, is_over)
            except Exception as failure:
                self._fail_post(chosen, failure)
            else:
                if posted is None:
                    return
                self._note_posted(chosen[0], posted[1])
            # Nothing refers to the memory of the piece while this thread waits.
            chosen.clear()
            posted = None

    def _waiting_series(self, peer: int) -> Sequence[_SendSeries]:
        """Returns the series with pieces to post to or from a rank."""
        with self._lock:
            return tuple(self._waiting[peer])

    def _has_posted_all(self, peer: int) -> bool:
        """Returns whether no more pieces for a rank follow."""
        with self._lock:
            return self._is_closed and not self._waiting[peer]

    def _note_posted(self, call: _SendCall, operation: Operation) -> None:
        """Notes a piece that is under way, and lets its end be told."""
        with self._lock:
            call.note_posted(operation)
            self._choose_next_call(call.series)
            is_over = self._is_closed and not self._calls
        if is_over:
            # An abort or a failure came between the post and this.
            operation.discard_result()
            return self._room.remove_user(call.series)
        operation.add_done_callback(lambda ended: self._ended.put((call, ended)))

    def _fail_post(self, chosen: Sequence[_SendCall], failure: Exception) -> None:
        """Fails the call whose next piece could not be posted, if it has not ended before."""
        for call in chosen:
            with self._lock:
                done = self._note_failure(call, failure)
            # Callbacks may wait for what this thread posts.
            for each in done:
                self._ended.put(each)

    def _note_failure(self, call: _SendCall, failure: Exception) -> list[_SendCall]:
        """Notes the failure of a piece. Returns the calls that end by it. The caller holds the
        lock."""
        call.note_failure(failure)
        self._choose_next_call(call.series)
        return [each for each in list(call.series.open) if each.end_if_done()]

    def _choose_next_call(self, series: _SendSeries) -> None:
        """Puts a series behind the others of its rank, or removes one with nothing to post. The
        caller holds the lock."""
        waiting = self._waiting[series.place.peer]
        waiting.pop(series, None)
        if series.unposted and not self._is_aborted:
            waiting[series] = None

    def _finish_next(self) -> bool:
        """Ends the next piece that is ready or has failed, or the next call. Returns whether more
        follow."""
        ended = self._ended.get()
        if ended is None:
            self._leave_room()
            return False
        if isinstance(ended, _SendCall):
            self._end_call(ended)
            return True
        call, operation = ended
        failure = wait_for_arena_piece(operation)
        with self._lock:
            call.pieces.discard(operation)
            if failure is not None:
                done = self._note_failure(call, failure)
            else:
                done = [call] if call.end_if_done() else []
        # Nothing refers to the memory of the result.
        del ended, operation, failure
        self._room.end_piece(call.series)
        # The others end by threads that do not wait for callbacks of the first.
        for other in done[1:]:
            self._ended.put(other)
        if done:
            self._end_call(done[0])
        return True

    def _end_call(self, call: _SendCall) -> None:
        """Ends the work of a call. Another thread leads from its callbacks on."""
        call.work.end(call.failure)
        with self._lock:
            self._calls.discard(call)
            self._end_threads_if_done()
        call.work.run_callbacks()

    def _end_threads_if_done(self) -> None:
        """Lets the thread for results end after the last call. The caller holds the lock."""
        if self._is_closed and not self._calls:
            self._ended.put(None)

    def _leave_room(self) -> None:
        """Gives back the room of pieces that have not ended."""
        for series in list(self._series.values()):
            self._room.remove_user(series)
