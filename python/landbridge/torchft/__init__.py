"""Process groups of torchft over Landbridge: replicas come and go, over all sites.

    manager = torchft.Manager(pg=landbridge.torchft.ProcessGroup("east.toml"), ...)

It needs the package ``torchft``.
"""

from ._process_group import ProcessGroup

__all__ = ["ProcessGroup"]
