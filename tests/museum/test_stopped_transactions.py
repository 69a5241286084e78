"""An operator stopped the transactions of a shard for a deletion. The leader's own limit, proposed behind
that entry before it was applied, let them begin again while the topic was being deleted. Found by review."""

import msgspec

from hawser.cluster.node.maintenance import Maintenance
from hawser.cluster.node.retention import Retention
from hawser.log.entry import Kind
from hawser.log.protocol.events import Command, Propose
from hawser.log.state.commands import encode_command
from hawser.transaction.participant.branches import DEFAULT_LIMIT, Branches
from tests.agent.test_recording_forgotten import leading_replica, propose


def test_a_leader_does_not_allow_what_an_operator_is_stopping() -> None:
    replica = leading_replica()
    wanted = msgspec.structs.replace(DEFAULT_LIMIT, most_bytes=1 << 20)
    closed = encode_command(msgspec.structs.replace(DEFAULT_LIMIT, most_open=0))
    replica.step(Propose((Command(Kind.BRANCH_LIMIT, closed, None),)))
    branches = replica.machine.part(Branches)
    assert branches.limit.most_open, "the entry is in the log and not applied"
    due = Maintenance(wanted).due(replica, Retention())
    assert [kind for kind, _ in due] == [Kind.BRANCH_LIMIT]
    for kind, payload in due:
        propose(replica, kind, payload)
    assert branches.limit == msgspec.structs.replace(wanted, most_open=0)
    propose(replica, Kind.BRANCH_LIMIT, encode_command(wanted))
    assert branches.limit == wanted
