"""Runs a command of the program: progress is shown, the result is returned, a failure is an exception."""

import contextlib
import json as json_format
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

from ._binary import find_binary

# The commands that have no `--json`.
PRINT_TEXT = frozenset({"chat", "completions", "engine", "help", "man", "merge", "report", "serve", "view"})

# How a program is started that does not get the Ctrl-C of a terminal, and the signal that is Ctrl-C to it.
if sys.platform == "win32":
    CREATION_FLAGS, INTERRUPT = subprocess.CREATE_NEW_PROCESS_GROUP, signal.CTRL_BREAK_EVENT
else:
    CREATION_FLAGS, INTERRUPT = 0, signal.SIGTERM


class LayerscopeError(Exception):
    """A command failed. The message is what the program says."""

    command: list[str]
    """The command line."""
    returncode: int
    """The exit code: 1 where the machine failed, 2 for bad input, 130 after a signal."""

    def __init__(self, message: str, command: list[str], returncode: int) -> None:
        super().__init__(message)
        self.command = command
        self.returncode = returncode


def run(*arguments: object, json: bool = True, check: bool = True, **flags: object) -> Any:
    """Runs a command and returns the JSON that it prints.

    `arguments` are the command and its arguments. `flags` are its options: `max_new_tokens=32` is `--max-new-tokens 32`,
    `True` is an option without a value, `None` and `False` leave it out, a list or tuple repeats it. What a command takes is in
    `layerscope COMMAND --help`.

    Progress, warnings and errors are shown on standard error; `quiet=True` leaves progress out. Without `json`, and for the
    commands that print none (chat, completions, engine, help, man, merge, report, serve, view), the printed text is returned; where nothing is printed, None.

    A failure raises `LayerscopeError`, unless `check` is false. Ctrl-C interrupts the program as in a terminal: it finishes the piece
    in hand and keeps what is done, and then `KeyboardInterrupt` is raised; a second one ends the program at once.

        >>> layerscope.run("recommend", "run", tolerance=0.2)["l_cut"]
        22
        >>> layerscope.run("bench", "model.gguf", policies="full,speed:24+bos", lengths="1k,4k", quality=True)
        >>> print(layerscope.run("show", "run", by_category=True, json=False))
    """
    return call(arguments, flags, json=json, check=check, shown=True)


def call(arguments: Sequence[object], flags: Mapping[str, object], *, json: bool = True, check: bool = True, shown: bool) -> Any:
    """As `run`; where nothing is `shown`, standard error is read for the error alone."""
    words = command_line(arguments, flags)
    json = json and bool(words) and not words[0].startswith("-") and words[0] not in PRINT_TEXT
    if json and "--summary-json" not in words:
        words.append("--json")
    command = [find_binary(), *words]
    with _started(command) as process, ThreadPoolExecutor(2) as threads:
        assert process.stdout and process.stderr
        output = threads.submit(process.stdout.read)
        errors = threads.submit(_last_lines, process.stderr, sys.stderr if shown else None)
        interrupted = _wait(process)
    if interrupted:
        raise KeyboardInterrupt
    if process.returncode and check:
        raise LayerscopeError(_message(errors.result()) or _ending(process.returncode), command, process.returncode)
    text = output.result()
    if not text.strip():
        return None
    return json_format.loads(text) if json else text


def command_line(arguments: Sequence[object], flags: Mapping[str, object]) -> list[str]:
    """The words of a command: its arguments as text, then its options."""
    words = [_text(argument) for argument in arguments]
    for name, values in flags.items():
        option = "--" + name.replace("_", "-")
        for value in values if isinstance(values, (list, tuple)) else [values]:
            if value is True:
                words.append(option)
            elif value is not None and value is not False:
                # With `=`, since a value may begin with a dash.
                words.append(f"{option}={_text(value)}")
    return words


def _text(value: object) -> str:
    return os.fsdecode(value) if isinstance(value, os.PathLike) else str(value)


def _started(command: list[str]) -> "subprocess.Popen[str]":
    with _interrupts_held_back():
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            creationflags=CREATION_FLAGS,
        )


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """What is started in here does not get the Ctrl-C of a terminal, which goes to all processes in it.

    The program counts signals, so it must get one for each Ctrl-C: the one that `_wait` sends. In another thread than the main
    one, where Python raises no `KeyboardInterrupt`, the terminal's remains.
    """
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(process: "subprocess.Popen[str]") -> bool:
    """Waits until the program has ended, and says whether it was interrupted."""
    interrupted = False
    while process.poll() is None:
        try:
            process.wait()
        except KeyboardInterrupt:
            interrupted = True
            process.send_signal(INTERRUPT)
    return interrupted


def _last_lines(stream: IO[str], screen: IO[str] | None) -> list[str]:
    """Shows a stream as it comes and keeps its end."""
    lines: deque[str] = deque(maxlen=50)
    for line in stream:
        lines.append(line)
        if screen:
            screen.write(line)
            screen.flush()
    return list(lines)


def _message(lines: list[str]) -> str:
    """The error among the last lines: from the last line that begins as errors do, to a blank one."""
    beginnings = ("layerscope: ", "error: ")
    starts = [number for number, line in enumerate(lines) if line.startswith(beginnings)]
    text = "".join(lines[starts[-1] if starts else 0 :]).partition("\n\n")[0].strip()
    for beginning in beginnings:
        text = text.removeprefix(beginning)
    return text


def _ending(code: int) -> str:
    return f"the program was ended by signal {-code}" if code < 0 else f"the program ended with exit code {code}"
