"""What `python -m` puts on `sys.path`."""

from __future__ import annotations

import os
import sys


def drop_working_directory() -> None:
    """Take the working directory, which `python -m` puts first, from `sys.path`: a file there must not be run.

    For the module that is run as `__main__`, before it imports anything else. If the package itself is run from the
    working directory, it stays: the package could not be imported without it. `python -P` does not add it at all.
    """
    package = os.path.dirname(os.path.abspath(__file__))
    try:
        here = os.getcwd()
    except OSError:  # It is deleted, and then Python has not added it.
        return
    if not sys.flags.safe_path and sys.path[:1] == [here] and os.path.dirname(package) != here:
        del sys.path[0]
