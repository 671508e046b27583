"""A group whose ranks have other numbers than those of the fabric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._group.subgroup import ParentGroup


class RenumberedGroup:
    """The collectives of a group that an ``Exchange`` calls, by other numbers of its ranks.

    torchft numbers ranks by the names of replicas, and landbridge by the fabric. Lists of a block
    for each rank are sorted on the way in.

    Attributes:
        rank: The new number of this rank.
        world_size: The number of ranks.
    """

    def __init__(self, group: ParentGroup, places: Sequence[int]) -> None:
        """Renumbers a group.

        Args:
            group: The group.
            places: The number in the group of each rank, by its new number.
        """
        self._group = group
        self._places = list(places)
        self.rank = self._places.index(group.rank)
        self.world_size = group.world_size
        # These name no rank.
        self.all_reduce_async = group.all_reduce_async
        self.barrier_async = group.barrier_async
        self.close = group.close

    def reduce_async(self, array: Any, root: int, **options: Any) -> Any:
        """Reduces as ``Group.reduce_async``."""
        return self._group.reduce_async(array, root=self._places[root], **options)

    def broadcast_async(self, array: Any, root: int, **options: Any) -> Any:
        """Broadcasts as ``Group.broadcast_async``."""
        return self._group.broadcast_async(array, root=self._places[root], **options)

    def all_gather_async(self, array: Any, *, out: list[Any], **options: Any) -> Any:
        """Gathers as ``Group.all_gather_async``."""
        return self._group.all_gather_async(array, out=self._sorted_blocks(out), **options)

    def gather_async(self, array: Any, root: int, *, out: list[Any] | None, **options: Any) -> Any:
        """Gathers as ``Group.gather_async``."""
        blocks = None if out is None else self._sorted_blocks(out)
        return self._group.gather_async(array, self._places[root], out=blocks, **options)

    def scatter_async(self, blocks: Any, root: int, **options: Any) -> Any:
        """Scatters as ``Group.scatter_async``. Ranks but the root give a tensor for a result."""
        given = self._sorted_blocks(blocks) if isinstance(blocks, list) else blocks
        return self._group.scatter_async(given, self._places[root], **options)

    def reduce_scatter_async(self, blocks: list[Any], op: str, **options: Any) -> Any:
        """Reduces and scatters as ``Group.reduce_scatter_async``."""
        return self._group.reduce_scatter_async(self._sorted_blocks(blocks), op, **options)

    def all_to_all_async(
        self,
        blocks: list[Any],
        *,
        send: list[int],
        receive: list[int],
        out: list[Any],
        **options: Any,
    ) -> Any:
        """Exchanges blocks as ``Group.all_to_all_async``."""
        return self._group.all_to_all_async(
            self._sorted_blocks(blocks),
            send=self._sorted_blocks(send),
            receive=self._sorted_blocks(receive),
            out=self._sorted_blocks(out),
            **options,
        )

    def check_send_arguments(self, name: str, peer: int, tag: int) -> None:
        """Checks arguments as ``Group.check_send_arguments``."""
        known = 0 <= peer < self.world_size
        self._group.check_send_arguments(name, self._places[peer] if known else peer, tag)

    def send_async(self, array: Any, peer: int, **options: Any) -> Any:
        """Sends as ``Group.send_async``."""
        return self._group.send_async(array, self._places[peer], **options)

    def receive_async(self, like: Any, peer: int, **options: Any) -> Any:
        """Receives as ``Group.receive_async``."""
        return self._group.receive_async(like, self._places[peer], **options)

    def _sorted_blocks(self, blocks: Sequence[Any]) -> list[Any]:
        """Returns things for each rank in the order of the group."""
        found = dict(zip(self._places, blocks))
        return [found[place] for place in range(self.world_size)]
