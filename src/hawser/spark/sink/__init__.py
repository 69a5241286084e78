"""The sink behind `format("hawser")`: rows become messages of topics or of a queue, each exactly once.

    factory.py      the writer that serves a query
    options.py      the options of a query, checked
    targets.py      the topics or the queue, and the partition that each row goes to
    rows.py         rows as messages, from Arrow
    checkpoint.py   the sources of a micro-batch, from the checkpoint
    writer.py       the tasks' and the driver's part of a batch

Each attempt of a task prepares a branch of its own; the driver commits the branches of a batch with one
decision (`hawser.cluster.client.transaction.application_batch`). The decision does not name the branch of an
attempt that failed, was speculated or was thought dead, and such a branch is dropped. If Spark repeats a
batch because its end is unknown, the batch is either decided already, or the new decision drops its old
branches.
"""
