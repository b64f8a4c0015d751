"""A seccomp filter: system calls that a confined child may not make.

Denied are new programs and processes, sockets, signals and memory of other processes, and calls that reach into the
kernel. Threads stay allowed, since PyTorch starts some. The filter is a BPF program, built here and loaded by `prctl`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
import sys

_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT, _THIRD_ARGUMENT_AT = 0, 4, 16, 32
_CLONE_THREAD = 0x00010000
_X32_BIT = 0x40000000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER_MODE = 38, 22, 2
_OF_SOCKETS = ("connect", "accept", "accept4", "bind", "listen")
_TO_START_PROGRAMS = ("fork", "vfork", "execve", "prlimit64", "kill")

# Numbers by architecture: its audit name, clone, clone3, tgkill, and the denied calls.
_ARCHITECTURES: dict[str, tuple[int, int, int, int, dict[str, int]]] = {
    "x86_64": (
        0xC000003E, 56, 435, 234,
        {
            "socket": 41, "connect": 42, "accept": 43, "bind": 49, "listen": 50, "accept4": 288,
            "fork": 57, "vfork": 58, "execve": 59, "execveat": 322,
            "kill": 62, "tkill": 200, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297,
            "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
            "pidfd_open": 434, "pidfd_getfd": 438, "pidfd_send_signal": 424, "process_madvise": 440,
            "unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161,
            "move_mount": 429, "open_tree": 428, "fsopen": 430, "mount_setattr": 442,
            "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "io_uring_enter": 426,
            "keyctl": 250, "add_key": 248, "request_key": 249, "open_by_handle_at": 304, "name_to_handle_at": 303,
            "init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246, "kexec_file_load": 320,
            "reboot": 169, "swapon": 167, "swapoff": 168, "acct": 163, "settimeofday": 164, "clock_settime": 227,
            "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173, "personality": 135,
            "prlimit64": 302, "setrlimit": 160, "setpriority": 141, "sched_setaffinity": 203,
        },
    ),
    "aarch64": (
        0xC00000B7, 220, 435, 131,
        {
            "socket": 198, "connect": 203, "accept": 202, "bind": 200, "listen": 201, "accept4": 242,
            "execve": 221, "execveat": 281,
            "kill": 129, "tkill": 130, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240,
            "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272,
            "pidfd_open": 434, "pidfd_getfd": 438, "pidfd_send_signal": 424, "process_madvise": 440,
            "unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51,
            "move_mount": 429, "open_tree": 428, "fsopen": 430, "mount_setattr": 442,
            "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "io_uring_setup": 425, "io_uring_enter": 426,
            "keyctl": 219, "add_key": 217, "request_key": 218, "open_by_handle_at": 265, "name_to_handle_at": 264,
            "init_module": 105, "finit_module": 273, "delete_module": 106, "kexec_load": 104, "kexec_file_load": 294,
            "reboot": 142, "swapon": 224, "swapoff": 225, "acct": 89, "settimeofday": 170, "clock_settime": 112,
            "sethostname": 161, "setdomainname": 162, "personality": 92,
            "prlimit64": 261, "setrlimit": 164, "setpriority": 140, "sched_setaffinity": 122,
        },
    ),
}  # fmt: skip


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def denied_calls() -> tuple[str, ...]:
    """Return the names of the denied calls on this machine; empty where the filter has no numbers for it."""
    known = _ARCHITECTURES.get(platform.machine())
    return tuple(known[4]) if known else ()


def install(*, programs: bool = False, unix_sockets: bool = False) -> bool:
    """Load the filter for this thread and its descendants. Return whether the kernel took it.

    With `programs`, the process may start programs: a compiler runs an assembler. With `unix_sockets` it may use
    sockets inside of the machine, and none of the network: the CUDA driver needs one.
    """
    known = _ARCHITECTURES.get(platform.machine())
    if known is None or sys.platform != "linux":
        return False
    code = _filter(*known, programs, unix_sockets)
    instructions = ctypes.create_string_buffer(code)
    program = _Program(len(code) // 8, ctypes.addressof(instructions))
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return bool(library.prctl(_PR_SET_SECCOMP, _FILTER_MODE, ctypes.byref(program), 0, 0) == 0)


def _filter(
    architecture: int, clone: int, clone3: int, signal_thread: int, denied: dict[str, int], programs: bool,
    unix_sockets: bool,
) -> bytes:  # fmt: skip
    """Return the BPF program. `_step(code, value, skip if true, skip if false)` is one instruction."""
    refuse = _ERRNO | errno.EPERM
    lines = [
        _step(_LOAD, _ARCHITECTURE_AT),
        _step(_EQUAL, architecture, 1, 0),
        _step(_RETURN, _KILL),  # a 32-bit call would have other numbers
        _step(_LOAD, _NUMBER_AT),
        _step(_ANY_BIT, _X32_BIT, 0, 1),
        _step(_RETURN, refuse),
    ]
    threads_only = [
        _step(_EQUAL, clone3, 0, 1),
        _step(_RETURN, _ERRNO | errno.ENOSYS),  # the C library falls back to clone, whose flags the filter can read
        _step(_EQUAL, clone, 0, 4),
        _step(_LOAD, _FIRST_ARGUMENT_AT),
        _step(_ANY_BIT, _CLONE_THREAD, 0, 1),
        _step(_RETURN, _ALLOW),
        _step(_RETURN, refuse),
    ]
    own_threads_only = [
        _step(_EQUAL, signal_thread, 0, 4),
        _step(_LOAD, _FIRST_ARGUMENT_AT),
        _step(_EQUAL, os.getpid(), 0, 1),
        _step(_RETURN, _ALLOW),
        _step(_RETURN, refuse),
    ]
    if not programs:
        lines += [*threads_only, *own_threads_only]
    if unix_sockets:
        lines += [
            _step(_EQUAL, denied["socket"], 0, 4),
            _step(_LOAD, _FIRST_ARGUMENT_AT),
            _step(_EQUAL, socket.AF_UNIX, 0, 1),
            _step(_RETURN, _ALLOW),
            _step(_RETURN, refuse),
        ]
    # Limits may be read, by a null pointer to new ones, but not set.
    lines += [
        _step(_EQUAL, denied["prlimit64"], 0, 6),
        _step(_LOAD, _THIRD_ARGUMENT_AT),
        _step(_EQUAL, 0, 0, 3),
        _step(_LOAD, _THIRD_ARGUMENT_AT + 4),
        _step(_EQUAL, 0, 0, 1),
        _step(_RETURN, _ALLOW),
        _step(_LOAD, _NUMBER_AT),
    ]
    for name, number in denied.items():
        allowed = (programs and name in _TO_START_PROGRAMS) or (unix_sockets and name in _OF_SOCKETS)
        if not allowed:
            lines += [_step(_EQUAL, number, 0, 1), _step(_RETURN, refuse)]
    lines.append(_step(_RETURN, _ALLOW))
    return b"".join(lines)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
