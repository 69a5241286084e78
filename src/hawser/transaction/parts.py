"""What the machine of a shard is made of when it takes part in transactions, or decides them."""

from hawser.log.state.machine import shard_parts
from hawser.log.state.part import Part
from hawser.log.state.topic import RUN_PLACES
from hawser.transaction.branches import Branches
from hawser.transaction.home import Home

__all__ = ["transactional_parts"]


def transactional_parts(run_places: int = RUN_PLACES) -> tuple[Part, ...]:
    """The parts of any shard, with transactions; what is not used costs nothing."""
    return (*shard_parts(run_places), Branches(), Home())
