"""The replicated log, pure: what nodes and operators decide, how a log lies on disk, what is applied from it.

Nothing here knows a clock, a socket, a file or chance: `hawser.cluster` and `hawser.testing` bring them.
"""
