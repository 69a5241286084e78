"""The client of a cluster: it finds leaders, publishes each message exactly once, reads, and takes part in
groups, queues and transactions. It lives in one event loop; `hawser.api.cluster` is its public interface.

    client, handles                  a connection, and the topics and queues open in it
    router, rpc, answer_checks       where requests go, and the validation of their answers
    loop_thread, loop_primitives     the background event loop, and its event and timer
    errors, settings, sample         errors and backoff, timeouts and bounds, fetched messages
    admin/ publish/ subscribe/       catalog and offsets; producers; subscriptions and groups
    queue/ transaction/              consumers' sessions; transactions, Spark's batches and XA
"""

import logging

# A program sees the log lines of links only if it configures logging.
logging.getLogger("hawser.cluster").addHandler(logging.NullHandler())
