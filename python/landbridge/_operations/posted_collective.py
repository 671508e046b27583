"""A collective under way, with the memory that must outlive the collective."""

from __future__ import annotations

from typing import Any, NamedTuple

from .._arguments import PassedArguments
from .flight_recorder import RecordedCollective
from .operation import Operation

#: The offset and the length of a slot in the arena, in bytes.
SlotRange = tuple[int, int]


class PostedCollective(NamedTuple):
    """A collective under way, with the memory that must outlive the collective."""

    operation: Operation
    #: The slots of the contribution and of the result.
    slots: tuple[SlotRange, SlotRange]
    #: Objects whose memory the gateway uses.
    held: tuple[Any, ...]
    passed: PassedArguments

    def record_post(self, group: int, number: tuple[int, int]) -> RecordedCollective:
        """Returns the record of the collective, whose end the operation notes. ``number`` is its
        epoch and its sequence."""
        (_, contribution), (_, result) = self.slots
        record = RecordedCollective(group, number, self.passed, (contribution, result))
        self.operation.record = record
        return record
