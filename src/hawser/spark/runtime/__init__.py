"""The JVM of a session: its Java and its Spark, a quick start, and the reports of its queries."""
