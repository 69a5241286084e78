"""The agent: an optional process that recovers dead participants at once, serves metrics of a domain, and
records its topics, queues and trace into a cluster."""
