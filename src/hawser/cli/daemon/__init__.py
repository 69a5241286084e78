"""The commands that run until they are stopped: `hawser node`, `operator`, `agent` and `up`."""
