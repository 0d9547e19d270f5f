"""Which process runs a search, and whether it is still there."""

import os
import socket
from datetime import UTC, datetime, timedelta

import psutil

# a process on another machine cannot be looked at: it counts as gone when it has said nothing for this long
SILENCE = timedelta(minutes=10)


def this_process() -> str:
    """Names this process beyond the reuse of its number: host, number, start time."""
    return f"{socket.gethostname()}:{os.getpid()}:{psutil.Process().create_time():.0f}"


def is_alive(owner: str, last_sign: datetime) -> bool:
    """Whether the process named by `this_process` still runs."""
    host, number, started = owner.rsplit(":", 2)
    if host != socket.gethostname():
        return datetime.now(UTC) - last_sign < SILENCE
    try:
        process = psutil.Process(int(number))
        return abs(process.create_time() - float(started)) < 2 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
