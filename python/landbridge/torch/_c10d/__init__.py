"""The c10d backend ``landbridge``: PyTorch's process groups over sites.

A group inside one site is Gloo alone. A group across sites goes through the gateways, which reduce
over the ranks of their host before anything crosses.
"""

from .backend import register_backend
from .launch import init_process_group

__all__ = ["init_process_group", "register_backend"]
