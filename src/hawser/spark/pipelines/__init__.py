"""Spark Declarative Pipelines that land topics in tables and audit them, and their runner.

`landing` is the pipeline that comes with Hawser; copy it to begin one of your own. One directory holds
everything that a pipeline keeps (`directory`), without a catalog or metastore beside it.
"""
