"""The audit pipeline: it follows each message from tier to tier and gives a verdict for each minute of each
tier.

    topics          -> log_runs      recorded, replicated
    trace of hosts  -> trace_runs    published, delivered
    landing's raw   -> landed_runs   landed
                       all three -> verdicts     what is missing, double, damaged, late, with its ranges
                                 -> latencies    how long messages took, as histograms
                                 -> events       who joined, left, died and was recovered

The first three are evidence. Streams make it, each message once: a killed audit continues where it was, and
the next one reads only what is new. The other tables are computed from them as a whole.

An ordinary definition of a Spark Declarative Pipeline, as landing.py; `hawser pipeline audit` runs it.
"""

from functools import reduce
from typing import TYPE_CHECKING

from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from hawser.spark.pipelines.auditing.evidence import COLUMNS
from hawser.spark.pipelines.auditing.flows import content_hash, gap_header, judged, with_hashes_where_needed
from hawser.spark.pipelines.auditing.lines import Run
from hawser.spark.pipelines.auditing.log_evidence import landed_evidence, log_evidence
from hawser.spark.pipelines.auditing.trace_evidence import trace_evidence

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

spark = SparkSession.active()

URL = spark.conf.get("spark.hawser.url")
TOPICS = spark.conf.get("spark.hawser.topics", None) or ""
JUDGED_TOPICS = spark.conf.get("spark.hawser.audit.topics", None) or TOPICS
TRACE = spark.conf.get("spark.hawser.audit.trace", None) or ""
LANDING = spark.conf.get("spark.hawser.audit.landing", "")
DELETED = spark.conf.get("spark.hawser.audit.deleted", None) or ""
COMMITTED = spark.conf.get("spark.hawser.audit.committed", None) or ""
LATE_SECONDS = float(spark.conf.get("spark.hawser.late.seconds", None) or 600)
BATCH_RECORDS = spark.conf.get("spark.hawser.batch.records", None) or "5000000"

LATE_NS = int(LATE_SECONDS * 1e9)
HEADERS = "headers array<struct<key: string, value: binary>>"
LANDED = (
    "topic string, topic_uuid string, partition int, offset bigint, key binary, value binary, "
    f"timestamp timestamp, landed_at timestamp, {HEADERS}"
)
BYTES = F.coalesce(F.octet_length("value"), F.lit(0)).alias("bytes")

EVIDENCE = ["log_runs"]
RUN_COLUMNS = [*Run._fields, "first_us"]


def topics(names: str) -> "DataFrame":
    source = spark.readStream.format("hawser").option("endpoints", URL).option("subscribe", names)
    source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", BATCH_RECORDS)
    # Records that retention removed before they were read are a finding, not a failure.
    return source.option("failOnDataLoss", "false").option("includeHeaders", "true").load()


STAMPS = ["topic", "partition", "offset", "timestamp"]
LOG = topics(TOPICS).select(*STAMPS, "producer", "producer_sequence", content_hash(), BYTES, gap_header())
LOG_RUNS = LOG.mapInArrow(log_evidence, COLUMNS)


@dp.table(schema=COLUMNS, comment="What is in the logs, and what recorders wrote there.")
def log_runs() -> "DataFrame":
    return LOG_RUNS


if TRACE:
    EVIDENCE.append("trace_runs")
    RECORDS = topics(TRACE).select("key", "value", "producer", "producer_sequence")
    TRACE_RUNS = RECORDS.mapInArrow(trace_evidence(TRACE, LATE_NS), COLUMNS)

    @dp.table(schema=COLUMNS, comment="What the processes of hosts did.")
    def trace_runs() -> "DataFrame":
        return TRACE_RUNS


if LANDING:
    EVIDENCE.append("landed_runs")
    ROWS = spark.readStream.schema(LANDED).parquet(f"file:{LANDING}/tables/raw")
    # Of all topics: a file is read once, and a later audit may ask for another topic. Deleted topics are left
    # out, because evidence knows topics by name and they have offsets of their own.
    ROWS = ROWS.where(~F.col("topic_uuid").isin(*DELETED.split(",")))
    ROWS = ROWS.select(*STAMPS, "landed_at", content_hash(), BYTES)
    LANDED_RUNS = ROWS.mapInArrow(landed_evidence(LATE_NS), COLUMNS)

    @dp.table(schema=COLUMNS, comment="What is in the table of a landing.")
    def landed_runs() -> "DataFrame":
        return LANDED_RUNS


def evidence() -> "DataFrame":
    return reduce(lambda one, other: one.union(other), map(spark.read.table, EVIDENCE))


JUDGED = judged(COMMITTED, frozenset(JUDGED_TOPICS.split(",")))


@dp.materialized_view(comment="One for each minute of each topic, partition and tier.")
def verdicts() -> "DataFrame":
    runs = with_hashes_where_needed(evidence(), RUN_COLUMNS)
    whole = runs.agg(F.collect_list(F.struct(*RUN_COLUMNS)).alias("runs"))
    return whole.select(JUDGED.alias("judged")).select(F.inline("judged"))


@dp.materialized_view(comment="How long messages took until they were taken, claimed or landed.")
def latencies() -> "DataFrame":
    timed = evidence().where("what in ('taken', 'claimed', 'landed')")
    each = F.explode(F.arrays_zip("buckets", "counts")).alias("each")
    rows = timed.select("topic", "what", "region", "who", "slowest_ns", each)
    bucket = F.col("each.buckets").alias("bucket")
    sums = [F.sum("each.counts").alias("messages"), F.max("slowest_ns").alias("slowest_ns")]
    return rows.groupBy("topic", "what", "region", "who", bucket).agg(*sums)


@dp.materialized_view(comment="What happened on hosts beside messages, and what the trace has lost.")
def events() -> "DataFrame":
    kinds = "('joined', 'left', 'sender joined', 'sender left', 'recovered', 'missed', 'traced', 'lost')"
    columns = ["what", "topic", "region", "who", "owner", "carrier", "first", "last", "at_first", "at_last"]
    return evidence().where(f"what in {kinds}").select(*columns, "first_us", "process")
