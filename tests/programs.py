"""Programs that tests run in processes of their own, without the time that imports take.

``command("-W", "error")`` stands for ``[sys.executable, "-W", "error"]``: behind it come
``-c CODE`` or ``-m MODULE``, and arguments, for ``subprocess``. The process that runs them is a
fork of one that was started with the same options, and has imported Polars, PyArrow and
``fluss_df``. It has the environment, the working folder and the streams that were asked for, is
``__main__``, and ends as any program does.

What it is not for: a program that is sent signals, whose process id or memory matters, or that is
about how Python starts or what it imports. The process that ``subprocess`` knows stands before the
program: who kills that one has the program killed a moment later.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import marshal
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

_ROOT: Final = Path(__file__).parents[1]
_STUB: Final = str(Path(__file__).with_name("program_stub.py"))
_STREAMS: Final = ("stdin", "stdout", "stderr")
_LONGEST: Final = 1 << 20


def command(*options: str, preload: Sequence[str] = ()) -> list[str]:
    """Return how a command line begins, instead of ``[sys.executable, *options]``.

    ``preload`` names modules that are imported once, beside those that always are.
    """
    if not hasattr(os, "pidfd_open"):
        return [sys.executable, *options]
    return [sys.executable, "-I", "-S", _STUB, _started(options, tuple(preload))]


@functools.cache
def _started(options: tuple[str, ...], preload: tuple[str, ...]) -> str:
    """Start the process that is forked; return the address of its socket."""
    folder = tempfile.TemporaryDirectory(prefix="fluss-df-programs-")
    address = str(Path(folder.name) / "socket")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    process = subprocess.Popen(
        [sys.executable, *options, "-m", "tests.programs", str(listener.fileno()), *preload],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        pass_fds=[listener.fileno()],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    listener.close()

    def end() -> None:
        process.communicate()
        folder.cleanup()

    # it ends when its input does, also where this process is killed
    atexit.register(end)
    return address


# ---- the process that is forked


class _Request(NamedTuple):
    arguments: list[str]
    environment: dict[str, str]
    folder: str


def _serve(listener: socket.socket) -> types.CodeType | str:
    """Answer until the input ends. In the process of a program, return what it runs."""
    waiting = selectors.DefaultSelector()
    waiting.register(0, selectors.EVENT_READ)
    waiting.register(listener, selectors.EVENT_READ)
    running: dict[socket.socket, int] = {}
    while True:
        for key, _ in waiting.select():
            if key.fileobj == 0:
                for program in running.values():
                    os.kill(program, signal.SIGKILL)
                os._exit(0)
            elif key.fileobj is listener:
                asked, _ = listener.accept()
                streams, request = _asked(asked)
                with warnings.catch_warnings():
                    # libraries have threads of their own, which this process uses for nothing
                    warnings.simplefilter("ignore", DeprecationWarning)
                    program = os.fork()
                if not program:
                    waiting.close()
                    for other in (listener, asked, *running):
                        other.close()
                    return _begin(streams, request)
                for stream in streams:
                    os.close(stream)
                running[asked] = program
                waiting.register(asked, selectors.EVENT_READ)
                waiting.register(os.pidfd_open(program), selectors.EVENT_READ, asked)
            elif key.data is None:
                # who asked was killed
                assert isinstance(key.fileobj, socket.socket)
                waiting.unregister(key.fileobj)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(running[key.fileobj], signal.SIGKILL)
            else:
                asked = key.data
                assert isinstance(key.fileobj, int)
                waiting.unregister(key.fileobj)
                os.close(key.fileobj)
                _, status = os.waitpid(running.pop(asked), 0)
                if asked in waiting.get_map():
                    waiting.unregister(asked)
                with contextlib.suppress(BrokenPipeError):
                    asked.sendall(b"%d" % os.waitstatus_to_exitcode(status))
                asked.close()


def _asked(asked: socket.socket) -> tuple[list[int], _Request]:
    length, streams, _, _ = socket.recv_fds(asked, 4, 3)
    text = b""
    while len(text) < int.from_bytes(length, "big"):
        text += asked.recv(_LONGEST)
    return streams, _Request(*marshal.loads(text))


def _begin(streams: list[int], request: _Request) -> types.CodeType | str:
    """Make this process the one that was asked for; return its code, or the name of a module."""
    for number, (stream, name) in enumerate(zip(streams, _STREAMS, strict=True)):
        os.dup2(stream, number)
        os.close(stream)
        # a new one, as it may be a file where the other was a pipe
        old = getattr(sys, name)
        made = open(  # noqa: SIM115 - it stays to the end
            number,
            old.mode,
            encoding=old.encoding,
            errors=old.errors,
            buffering=1 if name == "stderr" or os.isatty(number) else -1,
            closefd=False,
        )
        setattr(sys, name, made)
        setattr(sys, f"__{name}__", made)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    how, what, *rest = request.arguments
    path = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    kept = [each for each in sys.path[1:] if each != str(_ROOT)]
    if how == "-m":
        # the folder in which it runs is first, as Python has it
        sys.path[:] = [request.folder, *path, *kept]
        sys.argv[:] = ["-m", *rest]
        return what
    assert how == "-c", how
    sys.path[:] = ["", *path, *kept]
    sys.argv[:] = ["-c", *rest]
    return compile(what, "<string>", "exec")


if __name__ == "__main__":
    import gc
    import importlib
    import runpy

    import polars  # noqa: F401
    import pyarrow.compute  # noqa: F401

    import fluss_df.aio
    import fluss_df.cli
    import fluss_df.embedded  # noqa: F401

    for _name in sys.argv[2:]:
        importlib.import_module(_name)
    gc.collect()
    gc.freeze()
    _what = _serve(socket.socket(fileno=int(sys.argv[1])))
    if isinstance(_what, str):
        runpy.run_module(_what, run_name="__main__", alter_sys=True)
    else:
        _main = types.ModuleType("__main__")
        sys.modules["__main__"] = _main
        exec(_what, _main.__dict__)
