"""Empty tensors in the collectives of process groups, over two ranks of this process."""

import pytest

import landbridge
from conftest import call_for_all

torch = pytest.importorskip("torch")

from process_group_members import members_of, options  # noqa: E402


@pytest.fixture(params=[64, 1 << 20], ids=["many pieces", "one piece"])
def members(request, two_groups):
    """Both ranks, whose pieces are short or long."""
    return members_of(two_groups, request.param)


#: Calls with tensors of one shape, which may be empty.
CALLS_OF_EMPTY = {
    "all_reduce": lambda member, make: member.allreduce([make()], options()),
    "broadcast": lambda member, make: member.broadcast([make()], options(rootRank=0)),
    "all_gather": lambda member, make: member.allgather([[make(), make()]], [make()], options()),
    "all_gather_single": lambda member, make: member.all_gather_single(
        torch.cat([make(), make()]), make(), options()
    ),
    "reduce_scatter": lambda member, make: member.reduce_scatter(
        [make()], [[make(), make()]], options()
    ),
    "reduce_scatter_single": lambda member, make: member.reduce_scatter_single(
        make(), torch.cat([make(), make()]), options()
    ),
    "gather": lambda member, make: member.gather(
        [[make(), make()] if member.rank == 0 else []], [make()], options(rootRank=0)
    ),
    "scatter": lambda member, make: member.scatter(
        [make()], [[make(), make()] if member.rank == 0 else []], options(rootRank=0)
    ),
}


@pytest.mark.parametrize("name", CALLS_OF_EMPTY)
@pytest.mark.parametrize("shapes", [[(0, 2), (0, 3)], [(0, 2), (4, 2)]], ids=["empty", "one empty"])
def test_empty_tensors_of_different_shape_are_a_disagreement(members, name, shapes):
    def check(member):
        CALLS_OF_EMPTY[name](member, lambda: torch.ones(0, 2)).wait()
        member.barrier().wait()
        with pytest.raises(landbridge.RanksDisagree) as raised:
            CALLS_OF_EMPTY[name](member, lambda: torch.ones(shapes[member.rank])).wait()
            # A rank that had nothing to wait for hears it at its next call.
            member.barrier().wait()
        return raised.value.here

    for shape, here in zip(shapes, call_for_all(members, check)):
        # A rank that had nothing to wait for knows only of the piece by then.
        assert f"shape {shape}" in here or (shape[0] and "shape (" in here), here


def test_empty_blocks_are_exchanged_beside_full_ones(members):
    def check(member):
        blocks = [torch.zeros(0, 2), torch.zeros(3, 2)]
        member.allgather([blocks], [torch.ones_like(blocks[member.rank])], options()).wait()
        assert blocks[1].sum() == 6
        mine = torch.zeros_like(blocks[member.rank])
        member.reduce_scatter([mine], [[torch.ones_like(b) for b in blocks]], options()).wait()
        assert mine.sum() == 12 * member.rank
        empty, none = torch.zeros(0, 2), [0, 0]
        member.all_to_all_single(empty.clone(), empty, none, none, options()).wait()
        member.alltoall([empty.clone()] * 2, [empty] * 2, options()).wait()

    call_for_all(members, check)
