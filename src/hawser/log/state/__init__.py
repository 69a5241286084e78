"""The state machine of a shard: the state that committed entries produce, the same on every member."""
