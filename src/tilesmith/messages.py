"""Messages between the judge and a child: JSON behind its length. The judge never unpickles what a child sends."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

LARGEST_MESSAGE = 32 << 20
_LENGTH = struct.Struct("!Q")


class Garbage(Exception):
    """The other side sent something that is no message; the text says what."""


class Closed(Exception):
    """The other side closed the socket."""


class TooLate(Exception):
    """No message came before the deadline."""


def send(channel: socket.socket, message: Any) -> None:
    data = json.dumps(message).encode()
    channel.sendall(_LENGTH.pack(len(data)) + data)


def receive(channel: socket.socket, deadline: float | None = None) -> dict[str, Any]:
    """Return the next message. `deadline` is a time of `time.monotonic`. Raises Garbage, Closed or TooLate."""
    (length,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size, deadline))
    if length > LARGEST_MESSAGE:
        raise Garbage(f"a message of {length:,} bytes")
    try:
        message = json.loads(_exactly(channel, length, deadline))
    except (ValueError, RecursionError) as error:
        raise Garbage(f"text that is no JSON ({type(error).__name__})") from None
    if not isinstance(message, dict):
        raise Garbage(f"a {type(message).__name__} in place of an object")
    return message


def _exactly(channel: socket.socket, length: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TooLate
            channel.settimeout(left)
        else:
            channel.settimeout(None)
        try:
            part = channel.recv(min(length - len(parts), 1 << 20))
        except TimeoutError:
            raise TooLate from None
        except OSError:
            raise Closed from None
        if not part:
            raise Closed
        parts += part
    return bytes(parts)
