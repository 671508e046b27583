"""Collectives and commits that coroutines wait for."""

import asyncio
import contextlib

import pytest

import landbridge
from conftest import attached_groups, call_for_all
from landbridge._local_regions import LocalRegions
from landbridge._operations.waiting import Latch, wait_in_event_loop

numpy = pytest.importorskip("numpy")


def test_a_latch_wakes_coroutines_before_and_after_it_opens():
    async def wait(latch):
        return await asyncio.wait_for(_Waiting(latch), 30)

    async def run():
        latch = Latch()
        waiting = [asyncio.ensure_future(wait(latch)) for _ in range(3)]
        waiting[0].cancel()
        await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, latch.open)
        ended = await asyncio.gather(*waiting, wait(latch), return_exceptions=True)
        assert isinstance(ended[0], asyncio.CancelledError) and ended[1:] == [None] * 3

    asyncio.run(run())


def test_a_latch_outlives_the_event_loop_that_waits_at_it():
    latch = Latch()

    async def give_up():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_Waiting(latch), 0.01)

    asyncio.run(give_up())
    latch.open()
    assert latch.wait(0)


class _Waiting:
    """An awaitable for a latch."""

    def __init__(self, latch):
        self._latch = latch

    def __await__(self):
        return wait_in_event_loop(self._latch)


def test_one_event_loop_waits_for_collectives_of_all_ranks(groups):
    async def step(group):
        first = group.all_reduce_async(numpy.full(10, group.rank + 1, "float32"), "sum")
        second = group.all_gather_async(numpy.full(1, group.rank, "int16"))
        gathered, total = await second, await first
        assert await first is total, "a second wait returns the same"
        await group.commit_async(7)
        return total[0], gathered.tolist()

    async def run():
        return await asyncio.gather(*[step(group) for group in groups])

    assert asyncio.run(run()) == [(6, [0, 1, 2])] * 3
    assert all(group.committed_step == 7 for group in groups)


def test_a_coroutine_hears_of_a_failure():
    with LocalRegions(ranks=(1, 1)) as regions, attached_groups(regions) as groups:

        def step(group):
            async def disagree():
                await group.all_reduce_async(numpy.zeros(group.rank + 1, "float32"), "sum")

            with pytest.raises(landbridge.RanksDisagree):
                asyncio.run(disagree())

        call_for_all(groups, step)


def test_cancelled_waits_leave_nothing_behind(groups):
    async def wait_and_cancel(operation):
        for _ in range(20):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(awaited(operation), 0.001)
        return len(operation._ready._wakers)

    async def awaited(operation):
        return await operation

    operation = groups[0].barrier_async()
    assert asyncio.run(wait_and_cancel(operation)) == 0
    call_for_all(groups[1:], lambda group: group.barrier())
    operation.wait()
