"""What a publisher gets back."""

from typing import Literal, NamedTuple

__all__ = ["Receipt"]


class Receipt(NamedTuple):
    """Proof that `count` messages are in the topic, from `first_offset` on, as safe as `durability` says.

    On one host others may publish in between the messages of a batch; their own order is kept.
    """

    topic: str
    partition: int
    first_offset: int
    count: int  # type: ignore[assignment]  # hides the tuple's method of that name
    durability: Literal["process", "majority"]
