"""Confine a child process: namespaces, Landlock and seccomp, as far as the machine has them.

Each protection is independent of the others. A confined child knows which hold, and the verdict lists them.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tilesmith.lab.judge.isolation import seccomp

NAMESPACES = "namespaces (user, network, processes, IPC)"
LANDLOCK = "Landlock (files, TCP, signals)"
WIDE_LANDLOCK = "Landlock (files but the system's, TCP, signals)"  # for a driver that reads what nobody documents
SECCOMP = "seccomp (programs, processes, sockets, tracing)"
RLIMITS = "rlimits (memory, CPU time, file size, open files)"
ALL = (NAMESPACES, LANDLOCK, SECCOMP, RLIMITS)

_NEW_USER, _NEW_NETWORK, _NEW_PROCESSES, _NEW_IPC, _NEW_UTS = 0x10000000, 0x40000000, 0x20000000, 0x08000000, 0x04000000
_NEW_MOUNTS = 0x00020000
_PRIVATE_MOUNTS = 0x00040000 | 0x00004000  # MS_PRIVATE, MS_REC
FOLDER_BYTES, FOLDER_FILES = 256 << 20, 10_000
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH, _VERSION_FLAG = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1, 2, 4, 8
_READ = _READ_FILE | _READ_FOLDER
_PR_SET_NO_NEW_PRIVS = 38


def enter_namespaces(*, on_gpu: bool = False) -> bool:
    """Give the children of this process their own users, network, process numbers and IPC. Return whether it works.

    A process on a GPU keeps the process numbers: in a namespace of them the CUDA driver fails (error 304 on an H200).
    Then seccomp and Landlock alone keep it from other processes.
    """
    if sys.platform != "linux":
        return False
    user, group = os.getuid(), os.getgid()
    flags = _NEW_USER | _NEW_NETWORK | _NEW_IPC | _NEW_UTS | (0 if on_gpu else _NEW_PROCESSES)
    if _libc().unshare(flags | _NEW_MOUNTS) and _libc().unshare(flags):
        return False
    with suppress(OSError):  # the process keeps its privileges on files either way
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return True


def limit_folder(folder: str) -> bool:
    """Put a folder's content into memory of limited size, seen by this process alone. Return whether it works.

    Nothing that the process writes there reaches the disk, and it ends with the process.
    """
    kept = {path.relative_to(folder): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}
    if _libc().mount(None, b"/", None, _PRIVATE_MOUNTS, None):
        return False
    options = f"size={FOLDER_BYTES},nr_inodes={FOLDER_FILES},mode=700".encode()
    if _libc().mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, options):
        return False
    for name, content in kept.items():
        file = Path(folder) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return True


def readable_paths() -> list[str]:
    """Return what Python, PyTorch and Triton read while they run."""
    folders = [sys.prefix, sys.base_prefix, "/usr", "/lib", "/lib64", os.environ.get("CUDA_HOME", ""), *sys.path]
    files = ["/etc/ld.so.cache", "/etc/passwd", "/etc/localtime", "/etc/nsswitch.conf", "/proc/self", "/proc/cpuinfo"]
    devices = ["/dev/urandom", "/dev/zero", "/sys/devices/system/cpu", "/proc/meminfo", "/proc/stat"]
    # A module that is installed for editing lies outside the prefix; its finder knows where.
    packages = [str(Path(__file__).parents[3])]
    return [path for path in dict.fromkeys([*folders, *files, *devices, *packages]) if path and os.path.exists(path)]


def system_folders() -> list[str]:
    """Return the folders of the operating system, which hold no files of users."""
    names = ("proc", "sys", "etc", "run", "var", "usr", "lib", "lib64", "opt", "bin", "sbin")
    return [f"/{name}" for name in names if os.path.exists(f"/{name}")]


def driver_paths() -> list[str]:
    """Return what the driver of a GPU reads about the machine."""
    of_kernel = [f"/proc/{name}" for name in ("devices", "modules", "version", "sys/vm", "sys/kernel")]
    return [one for one in ("/sys", "/etc/nvidia", *of_kernel) if os.path.exists(one)]


def gpu_devices() -> list[str]:
    """Return the files by which a process reaches NVIDIA's and AMD's GPUs. A driver also writes below /proc/self."""
    found = [str(one) for pattern in ("nvidia*", "nvidia-caps/*", "kfd", "dri/*") for one in Path("/dev").glob(pattern)]
    return [*found, *(one for one in ("/dev/shm", "/proc/driver/nvidia", "/proc/self") if os.path.exists(one))]


def restrict_files(
    readable: Sequence[str], writable: Sequence[str], *, programs: bool = False, devices: Sequence[str] = ()
) -> bool:
    """Allow reading and writing below these paths only. Return whether Landlock holds.

    With `programs`, those below the readable paths may be started. `devices` may be used too.
    """
    version = _libc().syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG) if sys.platform == "linux" else -1
    if version < 1:
        return False
    every_access = (1 << 13) - 1
    every_access |= (1 << 13) if version >= 2 else 0  # renaming between folders
    every_access |= (1 << 14) if version >= 3 else 0  # truncating
    every_access |= (1 << 15) if version >= 5 else 0  # ioctl on devices
    network = 0b11 if version >= 4 else 0
    scoped = (0b10 if devices else 0b11) if version >= 6 else 0  # signals, and sockets that a driver does not use
    attributes = struct.pack("QQQ", every_access, network, scoped)[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = _libc().syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    if rules < 0:
        return False
    for path in readable:
        _allow(rules, path, _READ | (_EXECUTE if programs else 0))
    for path in writable:
        _allow(rules, path, every_access & ~_EXECUTE)
    for path in devices:
        _allow(rules, path, every_access & ~_EXECUTE)
    _allow(rules, "/dev/null", _READ_FILE | _WRITE_FILE)
    _libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    held = bool(_libc().syscall(_RESTRICT_SELF, rules, 0) == 0)
    os.close(rules)
    return held


def _allow(rules: int, path: str, access: int) -> None:
    with suppress(OSError):
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not os.path.isdir(path):
            access &= _EXECUTE | _WRITE_FILE | _READ_FILE | (1 << 14) | (1 << 15)
        # struct landlock_path_beneath_attr is packed: 64 bits of access, 32 bits of descriptor.
        _libc().syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", access, handle), 0)
        os.close(handle)


def deny_calls(*, programs: bool = False, unix_sockets: bool = False) -> bool:
    """Deny system calls by seccomp, but those for `programs` and `unix_sockets`. Return whether the filter holds."""
    return seccomp.install(programs=programs, unix_sockets=unix_sockets)


def close_other_files(kept: Sequence[int]) -> None:
    """Close every descriptor except these and the standard streams."""
    for number in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else map(str, range(3, 256)):
        if int(number) > 2 and int(number) not in kept:
            with suppress(OSError):
                os.close(int(number))


def remove_folder(folder: Path) -> None:
    """Remove a folder that a candidate may have filled, with folders nested more deeply than Python can follow."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        subprocess.run(["rm", "-rf", "--", str(folder)], check=False)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
