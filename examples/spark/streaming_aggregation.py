"""Follow a topic, add up what comes, and keep a table of it that every run brings up to date.

python streaming_aggregation.py [URL]

The checkpoint says how far the query is. Each run reads what is new and nothing twice, also if the one before
was killed.
"""

import sys
import tempfile
from pathlib import Path

import hawser
import hawser.spark

url = sys.argv[1] if len(sys.argv) > 1 else "hawser://127.0.0.1:7400"
spark = hawser.spark.session("streaming aggregation")

with tempfile.TemporaryDirectory() as directory, hawser.connect(url, name="sensors") as bus:
    readings = bus.topic("spark-readings", partitions=2)
    checkpoint, table = str(Path(directory) / "checkpoint"), str(Path(directory) / "table")

    def bring_up_to_date() -> None:
        """One run: everything there is now."""
        sums = (
            spark.readStream.format("hawser")
            .option("endpoints", url)
            .option("subscribe", "spark-readings")
            .option("startingOffsets", "earliest")
            # Retention waits for this query, within its bounds.
            .option("groupId", "sums")
            .load()
            .selectExpr("CAST(key AS STRING) AS sensor", "CAST(CAST(value AS STRING) AS INT) AS reading")
            .groupBy("sensor")
            .sum("reading")
            .withColumnRenamed("sum(reading)", "total")
        )
        query = (
            sums.writeStream.outputMode("complete")
            .foreachBatch(lambda rows, _: rows.write.mode("overwrite").parquet(table))
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    for run in (1, 2):
        sensors = [str(number % 3).encode() for number in range(60)]
        readings.publish_many([str(number).encode() for number in range(60)], keys=sensors)
        bring_up_to_date()
        totals = {row.sensor: row.total for row in spark.read.parquet(table).collect()}
        print(f"run {run}:", ", ".join(f"sensor {name} {totals[name]}" for name in sorted(totals)))

    readings.delete()
