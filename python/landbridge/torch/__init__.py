"""PyTorch over Landbridge: gradients of one model, averaged over all sites.

Each site runs its own ``torchrun`` and its own default process group; the sites do not reach
each other but through their gateways.

    group = landbridge.connect(config="east.toml", rank=rank)
    step = landbridge.torch.resume(group, 0, model, optimizer)
    model = torch.nn.parallel.DistributedDataParallel(model)
    model.register_comm_hook(landbridge.torch.State(group), landbridge.torch.all_reduce_hook)
"""

from ._flat import FlatGrads
from ._hook import State, all_reduce_hook
from ._resume import resume
from ._sampler import UnevenSampler
from ._sync import check_module, module_digest, sync_module

__all__ = [
    "FlatGrads",
    "State",
    "UnevenSampler",
    "all_reduce_hook",
    "check_module",
    "module_digest",
    "resume",
    "sync_module",
]
