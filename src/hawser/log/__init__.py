"""The replicated log: the protocol of nodes and operators, the journal on disk, the state machine.

Pure: no clock, socket, file or randomness. `hawser.cluster` and `hawser.testing` supply them.
"""
