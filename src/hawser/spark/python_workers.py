"""Python workers of Spark: processes that its daemon forks, and that collect garbage after each task.

A collection visits every object of every imported module, which takes longer than a small task. Imported
modules are no garbage, so the first task excludes them from later collections.
"""

import gc
import sys

__all__ = ["set_imports_aside"]


def set_imports_aside() -> None:
    """Exclude all present objects from later collections; once, and only in a worker. Objects without
    references are still freed, unless they refer to themselves."""
    if _is_worker() and not gc.get_freeze_count():
        gc.freeze()


def _is_worker() -> bool:
    specification = getattr(sys.modules["__main__"], "__spec__", None)
    return specification is not None and specification.name == "pyspark.daemon"
