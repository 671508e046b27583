"""The ranks of a job, seen from one of them."""

from .group import Group, connect, resolve_group

__all__ = ["Group", "connect", "resolve_group"]
