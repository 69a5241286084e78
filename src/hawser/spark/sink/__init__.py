"""The sink behind `format("hawser")`: rows become messages of topics or of a queue, each exactly once.

    factory.py      the writer that serves a query
    options.py      what the user asked for, checked
    targets.py      the topics or the queue, and the partition that each row goes to
    rows.py         rows as messages, from Arrow
    checkpoint.py   what a micro-batch is made of
    writer.py       what a task does, and what the driver decides

Each attempt of a task prepares a branch of its own; the driver commits those of a batch with one decision
(`hawser.cluster.client.transaction.application_batch`). An attempt that failed, was doubled or comes back
from the dead has a branch that nobody names, and is dropped. A batch that Spark runs again because it does
not know how it ended is decided already, or is not: then its old branches are dropped by the new decision.
"""
