"""The Spark driver of the demo's totals.

python -m hawser.demo.programs.totals URL TABLE CHECKPOINT FILES HOLD

A streaming query reads the table of landed records, FILES files in each micro-batch, and writes the totals of
each publisher back to a topic. A batch that runs again after a kill is written once all the same, because the
cluster identifies it by its number. While the file HOLD exists, the driver waits between the write of a batch
and its completion in Spark, which is the worst moment for a kill.
"""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import hawser.spark
from hawser.demo.messages import FIELDS, RESULTS, TOTALS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LOOK_SECONDS: Final = 0.05
_RESULTS: Final = f"from_json(CAST(value AS STRING), '{FIELDS}') AS result"
_SUMS: Final = "count(*) AS messages, sum(result.bytes) AS bytes, sum(result.checksum) AS checksum"


def main(url: str, table: str, checkpoint: str, files: str, hold: str) -> None:
    """Run until the totals include all landed records."""
    spark = hawser.spark.session("totals", "local[2]", **{"spark.driver.memory": "1g"})
    landed = spark.readStream.schema("topic string, value binary").option("maxFilesPerTrigger", files)
    results = landed.parquet(table).where(f"topic = '{RESULTS}'").selectExpr(_RESULTS)

    def write_back(batch: "DataFrame", number: int) -> None:
        if batch.isEmpty():
            return
        totals = batch.sparkSession.sql(
            f"SELECT result.publisher AS key, to_json(struct({number} AS batch, {_SUMS})) AS value "
            "FROM {batch} GROUP BY result.publisher",
            batch=batch,
        )
        identity = {"txnAppId": "demo-totals", "txnVersion": str(number)}
        totals.write.format("hawser").mode("append").options(endpoints=url, topic=TOTALS, **identity).save()
        while Path(hold).exists():
            time.sleep(_LOOK_SECONDS)

    query = results.writeStream.foreachBatch(write_back).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
