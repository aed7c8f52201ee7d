"""Starting a program anew in a namespace of its own, where it may change what others do not see."""

from __future__ import annotations

import os
import subprocess
import sys

_TRIAL_SECONDS = 10.0


def enter(module: str, arguments: list[str], kind: str, trial: str) -> str:
    """Becomes `python -m MODULE ARGUMENTS` in a namespace of a kind (`net`, `mount`), so that it
    does not return; or says why there can be none. Empty if this is one already.

    `trial` is a script that does what will have to be possible there.
    """
    mark = f"PENSTOCK_OWN_{kind.upper()}"
    if os.environ.get(mark):
        return ""
    own = ["unshare", f"--{kind}"]
    if os.geteuid() != 0:
        own = ["unshare", "--user", "-r", f"--{kind}"]
    try:
        tried = subprocess.run(
            [*own, "sh", "-c", trial], capture_output=True, text=True, timeout=_TRIAL_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"a {kind} namespace cannot be made: {error}"
    if tried.returncode:
        return f"a {kind} namespace cannot be made: {tried.stderr.strip() or 'not allowed'}"
    sys.stdout.flush()
    command = [*own, sys.executable, "-m", module, *arguments]
    os.execvpe(own[0], command, os.environ | {mark: "1"})
