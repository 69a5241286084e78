"""Python workers of Spark: processes that its daemon forks, and that collect garbage after each task.

A collection visits every object of every module that was ever imported, which takes longer than a small task
does. What is imported is no garbage: after the first task it is set aside.
"""

import gc
import sys

__all__ = ["set_imports_aside"]


def set_imports_aside() -> None:
    """Let no collection of this process visit what is there now; once, and only in a worker. Whatever nobody
    refers to any more is still freed, unless it refers to itself."""
    if _is_worker() and not gc.get_freeze_count():
        gc.freeze()


def _is_worker() -> bool:
    specification = getattr(sys.modules["__main__"], "__spec__", None)
    return specification is not None and specification.name == "pyspark.daemon"
