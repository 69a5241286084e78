"""The client of a cluster: finds leaders, publishes each message once, reads, shares the work of groups.

All of it lives in one event loop. `hawser.api.cluster` puts the public names before it.
"""

import logging

# Links that come and go are the program's business only if it listens.
logging.getLogger("hawser.cluster").addHandler(logging.NullHandler())
