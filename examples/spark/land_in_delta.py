"""Land a topic in a Delta table, each record exactly once, with `deltalake`: no Java library is needed.

python land_in_delta.py [URL]

The tasks of a batch write files into the table's directory; one commit then names them, together with the
query and the number of the batch. A batch that is run again, because the program was killed before Spark
noted that it was done, finds its number in the table and adds nothing; of two programs that run the same
batch the second is refused. Files that no commit names are not in the table, and `vacuum` removes them.
"""

import sys
import tempfile
import uuid
from pathlib import Path

from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, SparkSession

import hawser
import hawser.spark

COLUMNS = ["topic", "partition", "offset", "timestamp", "key", "value"]


def land(spark: SparkSession, url: str, topic: str, directory: Path, **options: str) -> None:
    """One run: everything that the topic has now and the table in `directory` has not."""
    records = (
        spark.readStream.format("hawser")
        .options(endpoints=url, subscribe=topic, startingOffsets="earliest", **options)
        .load()
        .select(COLUMNS)
    )
    table = directory / "table"
    # Delta writes schemas down as Spark does.
    DeltaTable.create(table, Schema.from_json(records.schema.json()), mode="ignore")
    query = (
        records.writeStream.foreachBatch(lambda rows, batch: add(rows, batch, table))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def add(rows: DataFrame, batch: int, path: Path) -> None:
    """Add the rows of a batch to the table, unless it has them."""
    # The checkpoint's, so a run after a crash goes on as the same query. A new checkpoint is a new one, which
    # counts its batches from 0 again: a name that stays would make the table take them for repeats.
    query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert query is not None, "add is called by a stream"
    table = DeltaTable(path)
    newest = table.transaction_version(query)
    if newest is not None and newest >= batch:
        return
    folder = path / f"batch-{batch}-{uuid.uuid4()}"
    rows.write.parquet(str(folder))
    table.create_write_transaction(
        [_file(file, path) for file in sorted(folder.glob("*.parquet"))],
        mode="append",
        schema=table.schema(),
        commit_properties=CommitProperties(app_transactions=[Transaction(query, batch)]),
    )


def _file(file: Path, table: Path) -> AddAction:
    about = file.stat()
    name = str(file.relative_to(table))
    return AddAction(name, about.st_size, {}, int(about.st_mtime * 1000), True, "{}")


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "hawser://127.0.0.1:7400"
    spark = hawser.spark.session("land in delta")
    with tempfile.TemporaryDirectory() as name, hawser.connect(url, name="shop") as bus:
        orders = bus.topic("delta-orders", partitions=2)
        for run in (1, 2):
            orders.publish_many([f"order {run}-{number}".encode() for number in range(500)])
            land(spark, url, "delta-orders", Path(name))
            table = DeltaTable(Path(name) / "table")
            print(f"run {run}: {table.to_pyarrow_table().num_rows:,} orders in version {table.version()}")
        orders.delete()


if __name__ == "__main__":
    main()
