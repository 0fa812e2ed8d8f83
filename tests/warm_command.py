"""``dragoman`` for many short calls: the process of the tests imports everything once, and what answers a call is forked.

A program of a test, PROGRAM.py with its arguments, is run in place of the command.
"""

import json
import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import torch

from dragoman.cli import MODULE_OF, VERBS, main

MODULES = ("training.run", "training.trainer", "training.report", "decoding.translate", "evaluation.evaluate")
LATER = ("torch._dynamo", "sacrebleu", "numpy.random")
"""What those import when they are called: PyTorch's optimisers alone take longer to come than a training of a few steps."""
JOB = ("RANK", "LOCAL_", "WORLD_SIZE", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_")
"""What the variables begin with by which torchrun tells a process its place."""
CLIENT = """\
#!{python} -IS
import json, os, socket, sys
arguments = sys.argv[1:]
more = {more} if arguments[0] == "train" else []
if more and "-" not in arguments[1]:  # one language: a model of one sequence has one stack of layers
    more = [part for part in more if not part.startswith(("model.encoder_layers", "model.decoder_layers"))]
    more = [part for part, after in zip(more, more[1:] + [""]) if part != "--set" or after not in ("", "--set")]
arguments += more
connection = socket.socket(socket.AF_UNIX)
connection.connect({address!r})
job = {{name: value for name, value in os.environ.items() if name.startswith({job})}}
socket.send_fds(connection, [json.dumps([os.getcwd(), arguments, job]).encode()], [0, 1, 2])
sys.exit(connection.recv(1)[0])
"""


@contextmanager
def warm_command(script: Path, *, more: Sequence[str] = ()) -> Iterator[None]:
    """While the block runs, ``script`` does what ``dragoman`` does; ``train`` gets ``more`` arguments."""
    import_everything()
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        address = str(Path(folder) / "socket")
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(CLIENT.format(python=sys.executable, job=JOB, more=list(more), address=address), encoding="utf-8")
        script.chmod(0o755)
        listener.bind(address)
        listener.listen()
        tests = os.getpid()
        server = os.fork()
        if not server:
            try:
                _serve(listener, tests)
            finally:
                os._exit(70)
        try:
            yield
        finally:
            os.kill(server, signal.SIGTERM)
            os.waitpid(server, 0)


def import_everything() -> None:
    """What any verb imports sooner or later, so that a process that is forked has it."""
    for name in [*(f"cli.{MODULE_OF.get(verb, verb)}" for verb in VERBS), *MODULES]:
        import_module(f"dragoman.{name}")
    for name in LATER:
        import_module(name)


def _serve(listener: socket.socket, tests: int) -> None:
    """Forks for each call, until it is told to end or the process of the tests has ended."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    torch.set_num_threads(1)
    listener.settimeout(1)
    while os.getppid() == tests:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        connection.setblocking(True)
        call, streams, _, _ = socket.recv_fds(connection, 1 << 16, 3)
        if os.fork() == 0:
            _answer(connection, call, streams)
        for stream in streams:
            os.close(stream)
        connection.close()


def _answer(connection: socket.socket, call: bytes, streams: Sequence[int]) -> None:
    status = 70
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin, sys.stdout, sys.stderr = (open(number, mode, encoding="utf-8") for number, mode in enumerate("rww"))  # noqa: SIM115
        Thread(target=_end_with, args=(connection,), daemon=True).start()
        folder, arguments, job = json.loads(call)
        os.environ |= job
        os.chdir(folder)
        if arguments[0].endswith(".py"):
            sys.argv = arguments
            status = _status_of(arguments[0])
        else:
            sys.argv = ["dragoman", *arguments]
            status = main(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        connection.send(bytes([status]))
        os._exit(0)


def _status_of(program: str) -> int:
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    return 0


def _end_with(connection: socket.socket) -> None:
    """A caller that is killed takes its command along, as it would be the command itself."""
    if not connection.recv(1):
        os.kill(os.getpid(), signal.SIGTERM)
