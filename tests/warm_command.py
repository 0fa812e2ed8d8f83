"""``dragoman`` for many short calls: one process imports everything once and forks for each call. ``python warm_command.py SOCKET``.

A program of a test, PROGRAM.py with its arguments, is run in place of the command.
"""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

MODULES = ("training.run", "training.trainer", "training.report", "decoding.translate", "evaluation.evaluate")
LATER = ("torch._dynamo", "sacrebleu", "numpy.random")
"""What those import when they are called: PyTorch's optimisers alone take longer to come than a training of a few steps."""
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
socket.send_fds(connection, [json.dumps([os.getcwd(), arguments]).encode()], [0, 1, 2])
sys.exit(connection.recv(1)[0])
"""


@contextmanager
def warm_command(script: Path, *, more: Sequence[str] = ()) -> Iterator[None]:
    """While the block runs, ``script`` does what ``dragoman`` does; ``train`` gets ``more`` arguments."""
    with TemporaryDirectory() as folder:
        address = str(Path(folder) / "socket")
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(CLIENT.format(python=sys.executable, more=list(more), address=address), encoding="utf-8")
        script.chmod(0o755)
        with subprocess.Popen([sys.executable, __file__, address], stdout=subprocess.PIPE) as server:
            try:
                assert server.stdout is not None
                assert server.stdout.readline() == b"ready\n"
                yield
            finally:
                server.terminate()


def _serve(address: str) -> None:
    from importlib import import_module

    import torch

    from dragoman.cli import MODULE_OF, VERBS

    for name in [*(f"cli.{MODULE_OF.get(verb, verb)}" for verb in VERBS), *MODULES]:
        import_module(f"dragoman.{name}")
    for name in LATER:
        import_module(name)
    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            call, streams, _, _ = socket.recv_fds(connection, 1 << 16, 3)
            if os.fork() == 0:
                _answer(connection, call, streams)
            for stream in streams:
                os.close(stream)
            connection.close()


def _answer(connection: socket.socket, call: bytes, streams: Sequence[int]) -> None:
    from dragoman.cli import main

    status = 70
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin, sys.stdout, sys.stderr = (open(number, mode, encoding="utf-8") for number, mode in enumerate("rww"))  # noqa: SIM115
        Thread(target=_end_with, args=(connection,), daemon=True).start()
        folder, arguments = json.loads(call)
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


if __name__ == "__main__":
    _serve(sys.argv[1])
