"""Topics as an earlier boot leaves them, made in a mount namespace where the boot has another name."""

import subprocess
import sys
from pathlib import Path

import pytest

BOOT_ID = "/proc/sys/kernel/random/boot_id"
EARLIER = "00000000-1111-2222-3333-444444444444\n"


def make_topic_of_earlier_boot(url: str, topic: str, scratch: Path) -> None:
    """Make the topic; skips the test where nobody may make a mount namespace."""
    (scratch / "boot_id").write_text(EARLIER)
    program = f"import hawser; hawser.connect({url!r}).topic({topic!r}).publish(b'x')"
    script = f'mount --bind "$0" {BOOT_ID} || exit 77; "$1" -c "$2" || exit 2'
    arguments = [str(scratch / "boot_id"), sys.executable, program]
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script, *arguments], check=False)
    if done.returncode in (1, 77):  # unshare's own, and the mount's: a program that failed ends with 2
        pytest.skip("needs the right to make a mount namespace")
    assert done.returncode == 0
