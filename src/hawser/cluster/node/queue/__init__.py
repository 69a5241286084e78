"""The queues that a node leads: delivery to consumers, and dead letters sent to other queues."""
