"""Where to compute, and what memory there is."""

import ctypes
import linecache
import mmap
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from dragoman.errors import UsageError

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # the numbers of mallopt(3)
_MEMINFO, _STATUS, _MAPPINGS = Path("/proc/meminfo"), Path("/proc/self/status"), Path("/proc/self/smaps")
_CGROUPS = (  # of a container: the limit, what is in use, and under which name the pages are that can be given back
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "inactive_file"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
        "total_inactive_file",
    ),
)


def pick_device(name: str) -> torch.device:
    """The device of a name: auto (a GPU where there is one), cpu, cuda, cuda:N or mps; UsageError when it is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        available = device.type in ("cpu", "cuda", "mps")
    except (RuntimeError, AssertionError):
        available = False
    if not available:
        raise UsageError(f"device {name!r} is not available here; give auto, cpu, cuda, cuda:N or mps")
    return device


def keep_freed_memory() -> None:
    """Asks the C library, where it is glibc, to keep the memory that is freed instead of giving it back to the system.

    Every training step frees and takes hundreds of megabytes, a step of search some, and to fetch them anew, page by page, takes time.
    """
    with _glibc() as library:
        for parameter, value in ((_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 64 * 2**20), (_MMAP_THRESHOLD, 32 * 2**20)):
            library.mallopt(parameter, value)


def give_back_memory() -> None:
    """Asks the C library, where it is glibc, to give the memory that has been freed back to the system, as after reading a model.

    It does so by itself with what lies at the end of what it has, and seldom then: one small thing that stays keeps all that is before it.
    """
    with _glibc() as library:
        library.malloc_trim(0)


def give_back_code() -> None:
    """Lets the system, where it is Linux, have the pages of program code back: most of them have been used by the start alone.

    They are copies of files, of PyTorch's above all; those that are used again are read again. What somebody has written to stays.
    """
    with _glibc() as library, suppress(OSError):  # no /proc
        start = end = 0
        for name, *rest in map(str.split, _MAPPINGS.read_text(encoding="utf-8", errors="replace").splitlines()):
            if not name.endswith(":"):  # "from-to access …", and what is known of it follows
                is_code = rest[0] == "r-xp" and rest[-1].startswith("/")
                start, end = (int(address, 16) for address in name.split("-")) if is_code else (0, 0)
            elif name == "Anonymous:" and rest[0] == "0" and end:
                library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def forget_sources() -> None:
    """Lets go of the source text that Python has read, as PyTorch's import makes it: 2 MB of lines. What is needed is read again."""
    linecache.clearcache()


@contextmanager
def _glibc() -> Iterator[ctypes.CDLL]:
    """The C library; what another than glibc does not have is left undone."""
    with suppress(AttributeError, OSError, TypeError):  # another has no mallopt, Windows no library without a name
        yield ctypes.CDLL(None)


def machine_facts(device: torch.device) -> dict[str, Any]:
    """Host, device and threads, for the record."""
    facts: dict[str, Any] = {"host": platform.node(), "device": str(device), "threads": torch.get_num_threads()}
    if device.type == "cuda":
        facts["device_name"] = torch.cuda.get_device_name(device)
    return facts


def peak_memory(device: torch.device) -> dict[str, int]:
    """Most bytes so far: "mem" resident of this process, "device_mem" of tensors on a GPU; nothing that the system does not tell."""
    peak = {}
    if (resident := _peak_resident()) is not None:
        peak["mem"] = resident
    if device.type == "cuda":
        peak["device_mem"] = torch.cuda.max_memory_allocated(device)
    return peak


def free_memory(device: torch.device) -> int | None:
    """Bytes that this process may still take on a device without harm to others; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    limits = [limit for limit in (_named_bytes(_MEMINFO, "MemAvailable:"), *map(_cgroup_room, _CGROUPS)) if limit is not None]
    if limits:
        return min(limits)
    with suppress(AttributeError, ValueError, OSError):  # macOS tells how much there is, Windows nothing
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _peak_resident() -> int | None:
    if (peak := _named_bytes(_STATUS, "VmHWM:")) is not None:
        return peak
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _named_bytes(path: Path, name: str) -> int | None:
    """The number after ``name`` in a file of names and numbers; one in kB is told in bytes."""
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith(name):
                number, *unit = line[len(name) :].split()
                return int(number) * (1024 if unit == ["kB"] else 1)
    except (OSError, ValueError):
        pass
    return None


def _cgroup_room(files: tuple[str, str, str, str]) -> int | None:
    limit, usage, statistics, reclaimable = files
    try:
        room = int(Path(limit).read_text(encoding="utf-8")) - int(Path(usage).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no such limit: "max"
        return None
    return room + (_named_bytes(Path(statistics), f"{reclaimable} ") or 0)
