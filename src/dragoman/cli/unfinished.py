"""Files of a translation that can be gone on with: written beside, recorded after every window, renamed when all is done.

``OUT.partial`` holds what there is of ``OUT``, and ``OUT.partial.json`` says how much of it is sure: so many lines of this input, by this
model with these settings, are so many bytes. What a kill leaves behind those bytes is written again. The names OUT appear last.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, get_args

from dragoman.cli.rounds import Done
from dragoman.cli.stops import undisturbed
from dragoman.cli.streams import RECORD_SUFFIX, partial_of
from dragoman.cli.tally import Tally
from dragoman.cli.windows import Window
from dragoman.decoding.options import Precision
from dragoman.errors import DragomanError, UsageError, counted, unreadable, unwritable
from dragoman.files import publish, write_file

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_FORMAT = 2
_KINDS = {name: type(value) for name, value in vars(Tally()).items()} | {
    "chosen": str, "complete": bool, "files": dict, "input": str, "identity": dict,
}  # fmt: skip
_UNKNOWN = {"chosen": "", "at_limit": 0, "limit_lines": []}
"""What records of older versions do not say: of the lines before, these outputs were not counted."""
_CHOSEN = ("", *get_args(Precision))
_CHUNK_BYTES = 1 << 20


class Unfinished:
    """The files of one translation while they are written: ``output`` and, if asked for, ``alignment``.

    ``identity`` is what must be the same when the work goes on: facts by their names. Opening finds out what is done, the ``tally``:
    nothing, or with ``resume`` what an earlier process did; and which precision was ``chosen`` for it, if one was, for work goes on in it.
    Raises DragomanError or UsageError, and changes nothing, where unfinished work of that name is not this one, or is and ``resume`` was
    not said.
    """

    def __init__(self, output: Path, alignment: Path | None, identity: Mapping[str, Any], *, resume: bool) -> None:
        self.paths = {"output": output} | ({} if alignment is None else {"alignment": alignment})
        self.identity = json.loads(json.dumps(identity))
        self.record_path = output.with_name(output.name + RECORD_SUFFIX)
        self.tally = Tally()
        self.complete = False
        self.chosen = ""
        self._sizes = dict.fromkeys(self.paths, 0)
        self._digests = {name: hashlib.sha256() for name in self.paths}
        self._input = hashlib.sha256()
        self._input_sha256 = self._input.hexdigest()
        self._files: dict[str, BinaryIO] = {}
        self._held = False
        record = self._read_record()
        if resume:
            self._go_on(record)
        else:
            self._begin(record)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Holds the files for this process while the block runs, and gives them their names when it ends well.

        After a failure what was recorded stays, and a notice says so.
        """
        try:
            self._open()
            try:
                yield
                self._record(complete=True)
            finally:
                for file in self._files.values():
                    file.close()
            self.publish()
        except BaseException as error:
            try:
                with undisturbed():  # torchrun sends SIGTERM to all ranks when one fails, just then
                    self._keep()
            except KeyboardInterrupt:  # or a moment before
                with undisturbed():
                    self._keep()
                raise
            if isinstance(error, OSError) and not isinstance(error, BrokenPipeError) and error.filename is None:  # of these very files
                reason = error.strerror or error
                raise DragomanError(f"{self.paths['output']}: cannot write: {reason}; make room there, and go on with --resume") from None
            raise

    def skip(self, windows: Iterable[Window]) -> Iterator[Window]:
        """The windows as they are; those that are done are read past first and must be the ones that were translated.

        Raises DragomanError when they are not.
        """
        done = self.tally.lines
        left = done
        for window in windows:
            if left:
                again = window.first(left)
                left -= len(again.texts)
                self._input.update(again.content)
                if not left:
                    self._check_input(done)
            yield window
        if left:
            self._check_input(done)

    def add(self, window: Window, done: Done) -> None:
        """Writes what became of a window, and records it once it is on the disk."""
        for name, text in (("output", done.output), ("alignment", done.alignment)):
            if name in self._files:
                self._write(name, text.encode("utf-8", errors="backslashreplace"))
        self._input.update(window.content)
        self._input_sha256 = self._input.hexdigest()
        self.tally.add(window, done)
        self.chosen = done.chosen
        self._record()

    def finish(self, windows: Iterable[Window]) -> None:
        """`publish` of files that were complete before, once the windows are known to be all that was translated.

        Raises DragomanError when they are not.
        """
        if sum(len(window.texts) for window in self.skip(windows)) != self.tally.lines:
            raise self._of_other_input(self.tally.lines)
        self.publish()

    def publish(self) -> None:
        """Gives the files that are complete their names, the output's last."""
        for path in reversed(self.paths.values()):
            if partial_of(path).exists():
                publish(partial_of(path), path)
        self.record_path.unlink(missing_ok=True)

    def _begin(self, record: dict[str, Any] | None) -> None:
        partial = partial_of(self.paths["output"])
        if record is not None and record["lines"] and partial.exists():
            raise DragomanError(
                f"{partial}: holds the first {counted(record['lines'], 'line')} of an unfinished translation; "
                "go on with it by --resume, or remove it"
            )
        if record is None:
            for path in self.paths.values():
                self._refuse_foreign(partial_of(path))

    def _refuse_foreign(self, partial: Path) -> None:
        if partial.exists() and (not partial.is_file() or partial.stat().st_size):
            raise DragomanError(
                f"{partial}: not of a translation that can go on, for there is no {self.record_path.name}; remove it or give another -o"
            )

    def _go_on(self, record: dict[str, Any] | None) -> None:
        output = self.paths["output"]
        if record is None:
            self._begin(record)
            if output.exists():
                raise DragomanError(
                    f"{output}: is there, and no {partial_of(output).name} to go on with; leave out --resume to translate all again"
                )
            return
        self._check_identity(record)
        self.complete = record["complete"]
        for name, path in self.paths.items():
            has_its_name = self.complete and not partial_of(path).exists()
            self._check_content(path if has_its_name else partial_of(path), **record["files"][name], name=name)
        self._input_sha256 = record["input"]
        self.tally = Tally(**{name: record[name] for name in vars(self.tally)})
        self.chosen = record["chosen"]

    def _check_identity(self, record: dict[str, Any]) -> None:
        before, now = record["identity"], self.identity
        changed = [
            f"{name} was {_shown(before.get(name))} and is {_shown(now.get(name))}"
            for name in sorted({*before, *now})
            if before.get(name) != now.get(name)
        ]
        if changed or set(record["files"]) != set(self.paths):
            what = "; ".join(changed) or "it has other files"
            raise UsageError(f"{partial_of(self.paths['output'])}: cannot go on with it: {what}; give what it was begun with, or remove it")

    def _check_content(self, partial: Path, *, bytes: int, sha256: str, name: str) -> None:
        digest, left = self._digests[name], bytes
        try:
            with partial.open("rb") as file:
                while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
                    digest.update(chunk)
                    left -= len(chunk)
        except FileNotFoundError:
            pass  # nothing of it was recorded, or it is not what was
        if left or digest.hexdigest() != sha256:
            raise DragomanError(
                f"{partial}: changed since it was written, by {self.record_path.name}; remove both and begin anew without --resume"
            )
        self._sizes[name] = bytes

    def _read_record(self) -> dict[str, Any] | None:
        try:
            record = {**_UNKNOWN, **json.loads(self.record_path.read_bytes())}
            if record["format"] != _FORMAT:
                raise ValueError(f"format {record['format']}")
            kinds = [(record, _KINDS), *((file, {"bytes": int, "sha256": str}) for file in record["files"].values())]
            for fields, kind_of in kinds:
                for name, kind in kind_of.items():
                    if type(fields[name]) is not kind:
                        raise TypeError(f"{name} {fields[name]!r}")
            if record["chosen"] not in _CHOSEN:
                raise ValueError(f"chosen {record['chosen']!r}")
            return dict(record)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise DragomanError(unreadable(self.record_path, error)) from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DragomanError(
                f"{self.record_path}: not the record of an unfinished translation, or damaged ({error!r}); remove it or give another -o"
            ) from None

    def _open(self) -> None:
        for name, path in self.paths.items():
            try:
                descriptor = os.open(partial_of(path), os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
            except OSError as error:
                raise DragomanError(unwritable(path, error)) from None
            self._files[name] = os.fdopen(descriptor, "r+b", buffering=0)
            self._hold(name, self._files[name], path)
        self._held = True
        self._record()

    def _hold(self, name: str, file: BinaryIO, path: Path) -> None:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DragomanError(f"{path}: another process is writing it; wait for its end, or give another -o") from None
        if os.fstat(file.fileno()).st_size < self._sizes[name]:
            raise DragomanError(f"{path}: another process has just finished it; leave out --resume to translate all again")

    def _write(self, name: str, data: bytes) -> None:
        file, start = self._files[name], self._sizes[name]
        file.seek(start)
        file.truncate()  # what a kill or a full disk left of an earlier try
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
        self._sizes[name] = start + len(data)
        self._digests[name].update(data)

    def _check_input(self, lines: int) -> None:
        if self._input.hexdigest() != self._input_sha256:
            self._held = False  # it is somebody else's then
            raise self._of_other_input(lines)

    def _of_other_input(self, lines: int) -> DragomanError:
        what = f"lines of the input are not the {lines:,}" if self.complete else f"first {lines:,} lines of the input are not those"
        return DragomanError(
            f"the {what} that {partial_of(self.paths['output'])} translates; "
            "give the text and the prefixes it was begun with, or remove it and begin anew"
        )

    def _record(self, *, complete: bool = False) -> None:
        for name, file in self._files.items():
            if complete:
                file.truncate(self._sizes[name])
            os.fsync(file.fileno())
        record = {
            "format": _FORMAT,
            **vars(self.tally),
            "complete": complete,
            "files": {name: {"bytes": self._sizes[name], "sha256": self._digests[name].hexdigest()} for name in self.paths},
            "input": self._input_sha256,
            "identity": self.identity,
            "chosen": self.chosen,
        }
        write_file(self.record_path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")

    def _keep(self) -> None:
        record = self._read_record() if self._held else None  # an interruption may have come before it was written
        if record is None:
            for path in map(partial_of, self.paths.values()) if self._held else ():  # the record could not be written
                if path.is_file() and not path.stat().st_size:
                    path.unlink()
            return
        if record["lines"] or record["complete"]:
            logging.getLogger("dragoman").warning(
                "%s: holds the first %s lines; the same command with --resume goes on from there",
                partial_of(self.paths["output"]), f"{record['lines']:,}",
            )  # fmt: skip
        else:
            for path in (self.record_path, *map(partial_of, self.paths.values())):
                path.unlink(missing_ok=True)


def _shown(value: object) -> str:
    text = "not given" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:12]}…"
