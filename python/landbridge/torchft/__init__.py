"""torchft over Landbridge: replicas that come and go, in one process group over all sites.

    manager = torchft.Manager(pg=landbridge.torchft.ProcessGroup("east.toml"), ...)

It needs the package ``torchft``.
"""

from ._process_group import ProcessGroup

__all__ = ["ProcessGroup"]
