"""The source behind `format("hawser")`: topics and queues as Spark reads them, in a batch or as a stream.

    factory.py      the reader that serves a query
    options.py      the options of a query, checked
    schema.py       its columns, and the type of its values
    batch.py        a query that ends
    stream.py       a query that continues
    queue.py        a query that takes messages from a queue
    claims.py       its claims on those messages
    local.py        topics in shared memory, as a batch
    planning.py     where a query begins and ends, and its tasks
    offsets.py      the offsets of a query and their arithmetic: pure
    task.py         what a task does
    columns.py      rows as Arrow, from the batches of the log
    positions.py    the query's position in the cluster, which holds retention back

Spark finds it through `pyspark_hawser`.
"""
