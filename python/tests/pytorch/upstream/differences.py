"""PyTorch's distributed tests that landbridge does not pass, each with its reason.

They run all the same. One that passes is reported, so that no entry outlives its reason.
"""

from typing import NamedTuple


class Difference(NamedTuple):
    """A test that does not pass."""

    #: Why, as the page tells.
    reason: str
    #: What its failure says. Another failure is reported.
    text: str


_ANY_SOURCE = Difference(
    "both ends know a send by its place among those of two ranks, so `src` is needed",
    "errors.NotSupported: landbridge cannot receive from any rank",
)
_IS_COMPLETED = Difference(
    "`Work.is_completed()` of PyTorch stays `False` for backends in Python: ask "
    "`get_future().done()`",
    "is_completed())",
)
_MONITORED_BARRIER = Difference(
    "asks for the words of Gloo; `RanksTimedOut` names the missing ranks, and on every rank",
    "errors.RanksTimedOut: timed out waiting for ranks (cause: caller)",
)
_SPARSE = Difference(
    "sparse tensors raise `UnsupportedArray`",
    "errors.UnsupportedArray: the tensor of a collective has the layout torch.sparse_coo",
)
_LOGGED_NAME = Difference(
    "DDP's own log calls every backend of another package `custom`", "'custom' != 'landbridge'"
)
_GLOO_ALL_TO_ALL = Difference(
    "Gloo, which serves groups inside a site, has `all_to_all` of tensors of one shape alone",
    "ProcessGroupGloo::alltoall: invalid tensor size",
)

#: The difference of each test by placement of the ranks.
DIFFERENCES = {
    "one site": {
        "test_all_to_all": _GLOO_ALL_TO_ALL,
        "test_all_to_all_complex": _GLOO_ALL_TO_ALL,
        "test_all_to_all_full_group": _GLOO_ALL_TO_ALL,
        "test_all_to_all_group": _GLOO_ALL_TO_ALL,
        "test_ddp_logging_data_cpu": _LOGGED_NAME,
    },
    "two sites": {
        "test_ddp_logging_data_cpu": _LOGGED_NAME,
        "test_irecv": _IS_COMPLETED,
        "test_isend": _IS_COMPLETED,
        "test_isend_autograd_profiler": _IS_COMPLETED,
        "test_isend_torch_profiler": _IS_COMPLETED,
        "test_monitored_barrier_failure_order": _MONITORED_BARRIER,
        "test_monitored_barrier_gloo": _MONITORED_BARRIER,
        "test_monitored_barrier_gloo_rank_0_timeout": _MONITORED_BARRIER,
        "test_monitored_barrier_wait_all_ranks": _MONITORED_BARRIER,
        "test_send_recv_any_source": _ANY_SOURCE,
        "test_send_recv_any_source_autograd_profiler": _ANY_SOURCE,
        "test_send_recv_any_source_torch_profiler": _ANY_SOURCE,
        "test_sparse_all_reduce_sum": _SPARSE,
    },
}
