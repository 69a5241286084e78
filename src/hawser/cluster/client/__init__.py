"""The client of a cluster: finds leaders, publishes each message once, reads, shares the work of groups.

All of it lives in one event loop. `hawser.api.cluster` puts the public names before it.
"""
