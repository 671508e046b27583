"""The ranks of a job, seen from one of them."""

from .connecting import connect
from .group import Group, resolve_group

__all__ = ["Group", "connect", "resolve_group"]
