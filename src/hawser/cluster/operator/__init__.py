"""The operator process: it elects leaders, places and repairs shards, and creates and deletes topics and
queues."""
