"""The XA interface: the table of calls and states, and the calls applied by the coordinator."""
