"""Pipelines: Spark Declarative Pipelines that land topics in tables, and what runs them.

`landing` is the one that comes with Hawser, and what to copy for one of your own. Everything a pipeline keeps
is in one directory (`place`); no catalog, no metastore beside it.
"""
