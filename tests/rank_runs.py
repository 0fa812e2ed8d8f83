"""Trainings by several processes: forked from this one, which is quick, or started by torchrun, as users do it."""

import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from command_line import environment
from warm_command import import_everything

SECONDS = 90.0
"""After which a job counts as hung."""


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def on_ranks(size: int, folder: Path, work: Callable[[], int]) -> list[int]:
    """Does ``work`` in so many processes with torchrun's environment, the first failure ending all; returns their exit statuses.

    What rank N writes to standard error is in FOLDER/rank-N.txt. A status below 0 is the signal that ended the process.
    """
    import_everything()  # once, and not by each process
    port = str(free_port())
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(size):
        (folder / f"rank-{rank}.txt").write_bytes(b"")  # one that is ended before it begins says nothing
    children = [_start(rank, size, port, folder / f"rank-{rank}.txt", work) for rank in range(size)]
    statuses: dict[int, int] = {}
    deadline = time.monotonic() + SECONDS
    while len(statuses) < size:
        for rank, child in enumerate(children):
            if rank in statuses:
                continue
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                statuses[rank] = os.waitstatus_to_exitcode(status)
                if statuses[rank]:
                    for other in range(size):
                        if other not in statuses:
                            os.kill(children[other], signal.SIGTERM)
        if time.monotonic() > deadline:
            for rank in set(range(size)) - set(statuses):
                os.kill(children[rank], signal.SIGKILL)
                os.waitpid(children[rank], 0)
            raise AssertionError(f"ranks {sorted(set(range(size)) - set(statuses))} hang")
        time.sleep(0.005)
    return [statuses[rank] for rank in range(size)]


def said(folder: Path, rank: int) -> list[str]:
    """The lines that a rank of `on_ranks` wrote to standard error."""
    return (folder / f"rank-{rank}.txt").read_text("utf-8").splitlines()


def torchrun(size: int, *arguments: str | Path, warm: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run ``torchrun --nproc-per-node SIZE ARGUMENTS`` to its end; ``warm``, a `warm_command`, stands for Python in all processes.

    Then ARGUMENTS are those of ``dragoman``, or begin with a program.
    """
    python: Sequence[str] = (sys.executable, "-m", "torch.distributed.run")
    if warm:
        (warm.parent / "torchrun.py").write_text("from torch.distributed.run import main\nmain()\n", encoding="utf-8")
        python, arguments = (str(warm), str(warm.parent / "torchrun.py")), ("--no-python", warm, *arguments)
    job = ("--nproc-per-node", str(size), "--master-addr", "127.0.0.1", "--master-port", str(free_port()))
    return subprocess.run([*python, *job, *map(str, arguments)], capture_output=True, timeout=SECONDS, env=environment())


def _start(rank: int, size: int, port: str, errors: Path, work: Callable[[], int]) -> int:
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        os.environ |= {name: str(number) for name, number in numbers.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        descriptor = os.open(errors, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(descriptor, 2)
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        status = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)
