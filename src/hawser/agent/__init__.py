"""The agent: an ordinary participant that nobody needs. It recovers the dead at once, keeps their counts,
and records topics of this host into a cluster."""
