"""The source behind `format("hawser")`: topics and queues as Spark reads them, in a batch or as a stream.

    choosing.py     which reader serves a query
    options.py      what the user asked for, checked
    schemas.py      its columns, and the type of its values
    batch.py        a query that ends
    streaming.py    one that goes on
    queues.py       one that takes messages from a queue
    claiming.py     how it has them for itself
    local.py        topics in shared memory, as a batch
    placing.py      where a query begins, and where a batch ends
    offsets.py      where it is, and what it reads next: pure
    planning.py     ranges of offsets as the tasks of Spark
    reading.py      what a task does
    columns.py      rows as Arrow, from the batches of the log
    values.py       typed values
    connection.py   one connection to a cluster for each process
    marks.py        how far a query is, told to the cluster

`pyspark_hawser` is the name under which Spark finds it.
"""
