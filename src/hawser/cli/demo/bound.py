"""A `hawser` command that is killed with the stage: python -m hawser.cli.demo.bound COMMAND ..."""

import ctypes
import signal
from typing import Final

from hawser.cli.main import main

_SET_PARENT_DEATH_SIGNAL: Final = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    main()
