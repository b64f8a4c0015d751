"""Python imports this file at the start of every process that an inspected script starts."""

import contextlib
import os
import sys

sys.path = [entry for entry in sys.path if entry != os.path.dirname(__file__)]
_own = sys.modules.pop(__name__)
with contextlib.suppress(ImportError):
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401  # the user's own, if there is one
sys.modules.setdefault(__name__, _own)

_address = os.environ.get("TILESMITH_INSPECT")
if _address and not any("_tracker" in text or "forkserver" in text for text in sys.orig_argv):
    from tilesmith.lab.inspect.running.child_process import follow_this_process

    follow_this_process(_address)
