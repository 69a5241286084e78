"""Take orders from a queue, add them up, and write the totals to a topic: each order counts exactly once.

python exactly_once.py [URL]

The query claims messages of the queue for itself. Its batch of totals is one transaction, which is decided
once; the claim is committed when Spark has noted that. Kill it wherever you like and start it again on its
checkpoint: the totals are the same.
"""

import sys
import tempfile
from pathlib import Path

import hawser
import hawser.spark

url = sys.argv[1] if len(sys.argv) > 1 else "hawser://127.0.0.1:7400"
spark = hawser.spark.session("exactly once")

with tempfile.TemporaryDirectory() as directory, hawser.connect(url, name="shop") as bus:
    orders, totals = bus.queue("spark-carts"), bus.topic("spark-totals")
    checkpoint = str(Path(directory) / "checkpoint")

    def bring_up_to_date() -> None:
        """One run: everything there is now."""
        sums = (
            spark.readStream.format("hawser")
            .option("endpoints", url)
            .option("queue", "spark-carts")
            # The name, of this query only, under which it takes messages.
            .option("claimName", "totals")
            .load()
            .selectExpr("CAST(key AS STRING) AS key", "CAST(CAST(value AS STRING) AS INT) AS price")
            .groupBy("key")
            .sum("price")
            .selectExpr("key", "CAST(`sum(price)` AS STRING) AS value")
        )
        query = (
            sums.writeStream.outputMode("complete")
            .format("hawser")
            .option("endpoints", url)
            .option("topic", "spark-totals")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    for run in (1, 2):
        for price in range(10):
            orders.put(str(price).encode(), key=b"anna" if price % 2 else b"bert")
        bring_up_to_date()
        newest = sorted((sample.key or b"", bytes(sample.data)) for sample in totals.read_newest(2).samples)
        print(f"run {run}:", ", ".join(f"{name.decode()} {total.decode()}" for name, total in newest))

    orders.delete()
    totals.delete()
