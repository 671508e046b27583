"""PyTorch over Landbridge: the gradients of one model, averaged over all regions.

Each region runs its own ``torchrun`` with its own default process group. Regions reach each other
only through their gateways.

    import landbridge.torch as lb
    group = landbridge.connect(config="east.toml", rank=rank)
    step = lb.resume(group, 0, model, optimizer)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    ddp.register_comm_hook(lb.State(group), lb.all_reduce_hook)

``examples/two_regions.py`` is a complete training script with recovery.
"""

from ._c10d import init_process_group, register_backend
from ._flat_gradients import FlatGrads
from ._fsdp.hook import fsdp_hook
from ._hook_state import State, all_reduce_hook
from ._module_sync import check_module, module_digest, sync_module
from ._resume import resume
from ._sampler import UnevenSampler
from ._transferred_state.state_follower import catch_up

__all__ = [
    "FlatGrads",
    "State",
    "UnevenSampler",
    "all_reduce_hook",
    "catch_up",
    "check_module",
    "fsdp_hook",
    "init_process_group",
    "module_digest",
    "register_backend",
    "resume",
    "sync_module",
]

register_backend()
