"""The JVM under a session: which Java and Spark start it, how it starts soon, and what its queries report."""
