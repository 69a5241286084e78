"""A program that ends with its parent: python -m hawser.demo.programs.die_with_parent MODULE ARGUMENT ..."""

import ctypes
import runpy
import signal
import sys
from typing import Final

_SET_PARENT_DEATH_SIGNAL: Final = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
