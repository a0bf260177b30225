"""Server of a simulated machine, which answers the calls of other processes over a socket.

The library (`native/libcuda.c`) has a connection for each thread of a program, on which it sends one call at a time.
What a call points to is read from and written to the memory of the program, by `/proc/PID/mem`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from secrets import token_hex

from memtopo.common.errors import MemtopoError, internal_errors
from memtopo.common.files import closing_fd
from memtopo.common.processes import process_stat
from memtopo.machine import load
from memtopo.testing.program import LOOKUP, Call, Frames, Leak, SharedMachine, SimulatedProgram

_CALL = struct.Struct("=9Q")
_ORDER = struct.Struct("=iiQQQ")
_DONE = struct.Struct("=i")
_INSTANCE = struct.Struct("=Q")
_PEER = struct.Struct("=3i")
_ANSWER, _MAP, _UNMAP, _STORE_DESCRIPTOR = range(4)
_WAITING = 256
"""Connections that wait to be accepted."""
_PAUSE = 0.1  # seconds
_MOST_REPORTS = 20
_LARGE = 1 << 24
_PATIENCE = 5  # seconds, for the end of connections of a process that has ended


_Key = tuple[int, int]
"""Process id of a program, and the number of the instance, which is another one after exec."""


class _Ended(OSError):
    """The program has ended, or this thread of it."""


class _Malformed(OSError):
    """A message that the library does not send."""


class _Part(ctypes.Structure):
    """As `struct iovec`."""

    _fields_ = [("address", ctypes.c_void_p), ("size", ctypes.c_size_t)]


_NO_MEMORY = "is not memory that the program can use in this way"


class RemoteProgram:
    """Access to the program of a process. Orders go to the thread whose call is being made."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._thread = threading.local()
        libc = ctypes.CDLL(None, use_errno=True)
        self._read, self._write = libc.process_vm_readv, libc.process_vm_writev
        self._read.restype = self._write.restype = ctypes.c_ssize_t

    def serve(self, connection: socket.socket) -> None:
        """Use a connection for the orders of this thread's calls."""
        self._thread.connection = connection

    def ended(self) -> None:
        """Note that the program has ended, and has no memory any more."""
        self._thread.connection = None

    def read(self, address: int, count: int) -> bytes:
        if count > _LARGE:  # a wrong size is refused before so much memory is allocated here
            self.read(address + count - 1, 1)
        try:
            data = ctypes.create_string_buffer(count)
        except (MemoryError, OverflowError, ValueError) as error:
            raise OSError(errno.EFAULT, f"{count:,} bytes at {address:#x} are more than can be read") from error
        self._transfer(self._read, ctypes.addressof(data), address, count)
        return data.raw

    def check(self, address: int, count: int, *, writable: bool) -> None:
        reached = address
        with open(f"/proc/{self._pid}/maps") as maps:  # noqa: PTH123 of no folder
            for line in maps:
                span, permissions = line.split(maxsplit=2)[:2]
                start, end = (int(each, 16) for each in span.split("-"))
                if start <= reached < end and ("w" if writable else "r") in permissions:
                    reached = end
                if reached >= address + count:
                    return
        raise OSError(errno.EFAULT, f"{reached:#x} {_NO_MEMORY}")

    def write(self, address: int, data: bytes) -> None:
        own = ctypes.create_string_buffer(data, len(data))
        self._transfer(self._write, ctypes.addressof(own), address, len(data))

    def _transfer(self, call: Callable[..., int], own: int, address: int, count: int) -> None:
        """Copy between memory of this process and of the program, which has to permit it there."""
        done = 0
        while done < count:
            ours, theirs = _Part(own + done, count - done), _Part(address + done, count - done)
            moved = call(self._pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
            if moved <= 0:
                error = ctypes.get_errno() or errno.EFAULT
                reason = f"{address + done:#x} {_NO_MEMORY}"
                if error == errno.EPERM:
                    reason = "the system does not let the simulator use the memory of the program: see man 2 ptrace"
                raise OSError(error, reason)
            done += moved

    def opened(self, fd: int) -> int:
        return os.open(f"/proc/{self._pid}/fd/{fd & 0xFFFF_FFFF}", os.O_RDWR | os.O_CLOEXEC)

    def map(self, address: int, size: int, fd: int, offset: int) -> None:
        self._order(_MAP, (address, size, offset), [fd])

    def unmap(self, address: int, size: int) -> None:
        self._order(_UNMAP, (address, size, 0))

    def store_descriptor(self, pointer: int, fd: int) -> None:
        with closing_fd(fd):
            self._order(_STORE_DESCRIPTOR, (pointer, 0, 0), [fd])

    def frames(self) -> Frames:
        return ()

    def _order(self, order: int, arguments: tuple[int, int, int], fds: Iterable[int] = ()) -> None:
        connection = getattr(self._thread, "connection", None)
        if connection is None:  # the program has ended, and has no mappings
            return
        socket.send_fds(connection, [_ORDER.pack(order, 0, *arguments)], [*fds])
        if status := _DONE.unpack(_received(connection, _DONE.size))[0]:
            raise OSError(status, f"the program cannot map memory at {arguments[0]:#x}: {os.strerror(status)}")


class Server:
    """Server of a machine, at a socket of the abstract namespace, for programs of this user.

    `idle` is called when the last program has ended.
    """

    def __init__(self, shared: SharedMachine, idle: Callable[[], None] = lambda: None) -> None:
        self._shared, self._idle = shared, idle
        shared.settle = self._settle
        self._programs: dict[_Key, tuple[SimulatedProgram, RemoteProgram, list[socket.socket]]] = {}
        self._lock = threading.Condition()
        self._closed = False
        self.address = f"@memtopo-simulator-{token_hex(8)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(f"\0{self.address[1:]}")
        self._socket.listen(_WAITING)
        # Its threads leave signals to the process, which may wait for them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        threading.Thread(target=self._accept, daemon=True, name="memtopo simulator").start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def programs(self) -> list[SimulatedProgram]:
        """Programs that run. What those had that have ended has been freed."""
        self._settle()
        with self._lock:
            return [program for program, _, _ in self._programs.values()]

    def _settle(self, but: int = 0) -> None:
        """Wait until what those had that have ended has been freed; not for the process `but`."""
        with self._lock:
            ended = lambda: all(pid == but or process_stat(pid) for pid, _ in self._programs)  # noqa: E731
            self._lock.wait_for(ended, _PATIENCE)

    def close(self) -> None:
        """End the server: programs that go on get errors."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            connections = [each for _, _, every in self._programs.values() for each in every]
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if error.errno in {errno.EMFILE, errno.ENFILE} and not self._closed:
                    _say("no descriptor is left for another thread of a program: a higher 'ulimit -n' helps")
                    time.sleep(_PAUSE)
                continue
            pid, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            if uid != os.getuid():
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection, pid), daemon=True, name=f"memtopo {pid}").start()

    def _serve(self, connection: socket.socket, pid: int) -> None:
        try:
            key = pid, _INSTANCE.unpack(_received(connection, _INSTANCE.size))[0]
            program, port = self._connected(connection, key)
        except (OSError, MemtopoError) as error:
            if not isinstance(error, _Ended):
                _say(f"process {pid} cannot be served: {getattr(error, 'strerror', None) or error}")
            connection.close()
            return
        port.serve(connection)
        try:
            while True:
                number, *words = _CALL.unpack(_received(connection, _CALL.size))
                if number > LOOKUP:
                    raise _Malformed(errno.EPROTO, f"call {number:,} was sent, and the last one is {LOOKUP:,}")  # noqa: TRY301 as those of the socket
                connection.send(_ORDER.pack(_ANSWER, program.answer(number, words), 0, 0, 0))
        except _Malformed as error:
            _say(f"process {pid}: a connection is closed: {error.strerror}")
        except OSError:  # the program has ended, or this thread of it
            pass
        self._disconnected(connection, key)

    def _connected(self, connection: socket.socket, key: _Key) -> tuple[SimulatedProgram, RemoteProgram]:
        with self._lock:
            if key not in self._programs:
                port = RemoteProgram(key[0])
                self._programs[key] = SimulatedProgram(self._shared, port, key[0]), port, []
            program, port, connections = self._programs[key]
            connections.append(connection)
            return program, port

    def _disconnected(self, connection: socket.socket, key: _Key) -> None:
        connection.close()
        with self._lock:
            program, port, connections = self._programs[key]
            connections.remove(connection)
            if connections:
                return
            port.ended()
            program.close()
            del self._programs[key]
            self._lock.notify_all()
            is_idle = not self._programs
        if is_idle:
            self._idle()


def serve(made: str) -> None:
    """Serve a machine for the program that starts this process, and those that it starts, until the last one has ended.

    The machine is that of MEMTOPO_MACHINE, and the address of the server is written to the descriptor `made`. Refused
    calls and their reasons go to the standard error.
    """
    with internal_errors():
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each thread of a program takes one
        name = os.environ.get("MEMTOPO_MACHINE") or "h200x2"
        try:
            shared = SharedMachine(load(name), refused=Refusals())
        except MemtopoError as error:
            _say(str(error))
            sys.exit(error.exit_code)
        ended = threading.Event()
        server = Server(shared, idle=ended.set)
        with open(int(made), "w") as file:  # noqa: PTH123 a descriptor
            file.write(server.address)
        ended.wait()


def report_left(left: Sequence[Leak]) -> None:
    """Report what programs had when they ended, of the first objects."""
    for leak in left[:_MOST_REPORTS]:
        _say(f"process {leak.pid}: ended without freeing {leak._replace(pid=0)}")
    if len(left) > _MOST_REPORTS:
        _say(f"{len(left) - _MOST_REPORTS:,} more objects are not shown")


class Refusals:
    """Reports of refused calls of programs, of the first of each program. It is true if there were any."""

    def __init__(self) -> None:
        self._count: Counter[int] = Counter()

    def __bool__(self) -> bool:
        return bool(self._count)

    def __call__(self, call: Call) -> None:
        if call.error == "CUDA_ERROR_NOT_READY":
            return
        self._count[call.pid] += 1
        if self._count[call.pid] <= _MOST_REPORTS:
            _say(f"process {call.pid}: {call}")
        if self._count[call.pid] == _MOST_REPORTS:
            _say(f"process {call.pid}: more refused calls are not shown")


def _say(text: str) -> None:
    print(f"memtopo simulator: {text}", file=sys.stderr, flush=True)  # noqa: T201 of programs that are not ours


def _received(connection: socket.socket, size: int) -> bytes:
    found = connection.recv(size + 1)
    if not found:
        raise _Ended
    if len(found) != size:
        raise _Malformed(errno.EPROTO, f"a message does not have {size} bytes")
    return found
