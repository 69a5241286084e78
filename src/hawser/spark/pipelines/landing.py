"""The landing pipeline: topics in tables.

    topics -> raw -> typed          values by their format and schema
                  -> bad            values that are not of the schema
                  -> late           records that landed long after their time
                  -> gaps           samples that a recorder could not record
                  -> minutes        counts of each minute

`raw` has every record once; the other tables are made from it, and can be made anew without the topics. No
record is dropped: a record that cannot be typed is in `bad`, a late one is in `late` and in every other
table, too.

This file is an ordinary definition of a Spark Declarative Pipeline. Copy it to start one of your own, and run
it with `hawser pipeline run FILE.py --dir D`. Two rules:

- Every table that a stream fills declares its schema. There is no catalog that would remember it.
- What reads another table of the pipeline makes its columns with `select`. Spark 4.3 loses the order of the
  two after `withColumn`: the second one may then run before the first has finished.
"""

from typing import TYPE_CHECKING

from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from hawser.spark.pipelines import decoding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

spark = SparkSession.active()

URL = spark.conf.get("spark.hawser.url")
TOPICS = spark.conf.get("spark.hawser.topics")
VALUE_FORMAT = spark.conf.get("spark.hawser.value.format", None) or "raw"
VALUE_SCHEMA = spark.conf.get("spark.hawser.value.schema", "")
LATE_SECONDS = float(spark.conf.get("spark.hawser.late.seconds", None) or 600)
GROUP = spark.conf.get("spark.hawser.group", "")
BATCH_RECORDS = spark.conf.get("spark.hawser.batch.records", "1000000")
FORCE = spark.conf.get("spark.hawser.force", "false")

PLACE = "topic string, topic_uuid string, partition int, offset bigint, key binary"
STAMPS = "timestamp timestamp, producer string, producer_sequence bigint, landed_at timestamp"
RECORD = f"{PLACE}, value binary, headers array<struct<key: string, value: binary>>, {STAMPS}"
FIGURES = "bytes bigint, hash bigint"
VALUE = f"struct<{VALUE_SCHEMA}>" if VALUE_FORMAT != "arrow" else f"array<struct<{VALUE_SCHEMA}>>"

PLACE_COLUMNS = ["topic", "topic_uuid", "partition", "offset", "key"]
RECORD_COLUMNS = [*PLACE_COLUMNS, "value", "headers"]
STAMP_COLUMNS = ["timestamp", "producer", "producer_sequence", "landed_at"]

IS_GAP = decoding.is_gap()


@dp.table(
    schema=f"{RECORD}, {FIGURES}",
    comment="Every record, once. landed_at is when its micro-batch began, hash is of 32 bits.",
)
def raw() -> "DataFrame":
    source = spark.readStream.format("hawser").option("endpoints", URL).option("subscribe", TOPICS)
    source = source.option("startingOffsets", "earliest")
    source = source.option("includeHeaders", "true").option("includeTopicUuid", "true")
    source = source.option("maxOffsetsPerTrigger", BATCH_RECORDS)
    source = source.option("failOnDataLoss", "false" if FORCE == "true" else "true")
    if GROUP:
        source = source.option("groupId", GROUP)
    size = F.coalesce(F.octet_length("value"), F.lit(0)).cast("bigint")
    hashed = F.xxhash64("topic", "partition", "offset", "key", "value").bitwiseAND(F.lit(0xFFFF_FFFF))
    return source.load().select(
        *RECORD_COLUMNS,
        *STAMP_COLUMNS[:-1],
        F.current_timestamp().alias("landed_at"),
        size.alias("bytes"),
        hashed.alias("hash"),
    )


@dp.table(
    schema=f"{RECORD}, late_seconds double",
    comment=f"What landed more than {LATE_SECONDS:g} seconds after its time.",
)
def late() -> "DataFrame":
    lateness = F.col("landed_at").cast("double") - F.col("timestamp").cast("double")
    rows = spark.readStream.table("raw").select(
        *RECORD_COLUMNS, *STAMP_COLUMNS, lateness.alias("late_seconds")
    )
    return rows.where(F.col("late_seconds") > LATE_SECONDS)


@dp.table(
    schema="topic string, topic_uuid string, partition int, offset bigint, producer string, "
    "first_missing bigint, last_missing bigint, missing bigint, timestamp timestamp, landed_at timestamp",
    comment="What recorders could not record: the offsets of samples in their regions, null if not readable.",
)
def gaps() -> "DataFrame":
    first, last = decoding.gap_bounds()
    missing = [first.alias("first_missing"), last.alias("last_missing"), (last - first + 1).alias("missing")]
    rows = spark.readStream.table("raw").where(IS_GAP)
    return rows.select(*PLACE_COLUMNS[:-1], "producer", *missing, "timestamp", "landed_at")


if VALUE_FORMAT != "raw":
    DECODED = decoding.decoded(VALUE_FORMAT, VALUE)

    @dp.table(schema=f"{PLACE}, value {VALUE}, {STAMPS}", comment="What is of the schema.")
    def typed() -> "DataFrame":
        rows = spark.readStream.table("raw").where(~IS_GAP).select("*", DECODED.alias("decoded"))
        rows = rows.where("decoded.fault is null")
        return rows.select(*PLACE_COLUMNS, F.col("decoded.value").alias("value"), *STAMP_COLUMNS)

    @dp.table(schema=f"{RECORD}, fault string", comment="What is not of the schema, and why.")
    def bad() -> "DataFrame":
        rows = spark.readStream.table("raw").where(~IS_GAP)
        rows = rows.select(*RECORD_COLUMNS, *STAMP_COLUMNS, DECODED["fault"].alias("fault"))
        return rows.where("fault is not null")


# From narrow columns of all of `raw`: a minute is never closed, and late records count in it.
@dp.materialized_view(comment="What landed of each minute, by the time of the records.")
def minutes() -> "DataFrame":
    minute = F.date_trunc("minute", "timestamp").alias("minute")
    return (
        spark.read.table("raw")
        .groupBy("topic", "topic_uuid", "partition", minute)
        .agg(
            F.count("*").alias("records"),
            F.sum("bytes").alias("bytes"),
            # The same for the same records in any order, and with their number different for others.
            F.sum("hash").alias("hash"),
            F.min("offset").alias("first_offset"),
            F.max("offset").alias("last_offset"),
        )
    )
