"""The ranks of a job, seen from one of them."""

from .connecting import connect
from .group import Group, check_group_argument, dump, resolve_group

__all__ = ["Group", "check_group_argument", "connect", "dump", "resolve_group"]
