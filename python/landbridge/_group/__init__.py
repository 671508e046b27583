"""The ranks of a job, seen from one of them."""

from .group import Group, chosen, connect

__all__ = ["Group", "chosen", "connect"]
