"""Topics, queues, groups, offsets and transactions as an administrator sees them, without an open handle."""
