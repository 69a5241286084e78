"""Publishing to topics and queues: each message is written exactly once, in order."""
