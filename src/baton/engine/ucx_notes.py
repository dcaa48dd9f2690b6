"""Has UCX note which transport it chooses, in a file that only this process's evidence reads.

UCX picks the transport of each operation itself and tells nobody: a pull over `tcp/lo` between two
GPUs and one over NVLink look alike from above. `UCX_PROTO_INFO=y` makes it write down each choice
once, when it is made: some kilobytes in a process's life, nothing for a transfer.

Called in every process of vLLM through its plugin entry point, before NIXL is loaded. What somebody
has set is left alone. `BATON_UCX_NOTES=0` turns it off; then this engine has no evidence of UCX.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from pathlib import Path

SWITCH = "BATON_UCX_NOTES"
_begun: set[int] = set()


def note_ucx_choices() -> bool:
    """Set UCX's variables for this process and those that it starts; True when notes are taken."""
    if os.environ.get(SWITCH) == "0":
        return False
    if not any(name in os.environ for name in ("UCX_PROTO_INFO", "UCX_LOG_FILE")):
        os.environ["UCX_PROTO_INFO"] = "y"
        os.environ["UCX_LOG_FILE"] = str(_folder() / "%p.log")
    file = notes_file()
    if file is not None and os.getpid() not in _begun:
        # A process that died long ago may have had this number, and its notes are not ours.
        _begun.add(os.getpid())
        with contextlib.suppress(OSError):
            file.unlink()
    return file is not None


def notes_file() -> Path | None:
    """Where UCX writes what this process's transfers use; None when it does not."""
    pattern = os.environ.get("UCX_LOG_FILE", "")
    if os.environ.get("UCX_PROTO_INFO", "n") == "n" or "%p" not in pattern:
        return None
    return Path(pattern.replace("%p", str(os.getpid())))


def read_notes() -> str | None:
    """All that UCX has noted in this process so far; None when it takes no notes."""
    file = notes_file()
    if file is None:
        return None
    # UCX writes through C's stdio, which keeps the last kilobytes back until they fill a block.
    ctypes.CDLL(None).fflush(None)
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # UCX makes the file with its first line


def _folder() -> Path:
    """One for all engines of this user, swept of what dead processes left."""
    folder = Path(tempfile.gettempdir()) / f"baton-ucx-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to somebody else")
    except OSError:
        return Path(tempfile.mkdtemp(prefix="baton-ucx-"))
    for file in folder.glob("*.log"):
        if file.stem.isdigit() and not Path("/proc", file.stem).exists():
            file.unlink(missing_ok=True)
    return folder
