"""Notification of systemd about the state of a service (sd_notify), by one datagram and without a library."""

from __future__ import annotations

import os
import socket


def notify(*lines: str) -> str | None:
    """Send lines such as `READY=1` to the socket in NOTIFY_SOCKET, if it is set. Return why that failed, if it did."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return None
    if address[0] not in "/@":
        return f"NOTIFY_SOCKET is of a kind that memtopo does not support: {address!r}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            path = f"\0{address[1:]}" if address[0] == "@" else address
            sock.sendmsg(["\n".join(lines).encode()], [], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL, path)
    except OSError as error:
        return f"systemd was not notified of {lines[0]}: {(error.strerror or 'error').lower()}"
    return None
