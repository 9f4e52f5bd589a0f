"""Entry point of the `longspan` command line. `commands.py` lists the commands, one file each.

Errors of the user or the machine (no memory, a full disk) print one line on standard error and exit with code 2,
without a traceback. This file imports little, so that Ctrl-C works from the first moment.
"""

import atexit
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

STOPPED = "longspan: stopped"


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code: 0 success, 1 a claim or a check failed, 2 invalid command."""
    try:
        from longspan.cli.commands import app
        from longspan.cli.spellings import modern_flags

        arguments = modern_flags(arguments)
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        print(STOPPED, file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        raise
    except Exception as error:
        from longspan.cli.failures import explain
        from longspan.cli.terminal import clean

        line = explain(error, arguments)
        if line is None:
            raise
        print(f"longspan: {clean(' '.join(line.split()))}", file=sys.stderr)
        return 2


def run() -> None:
    """The console script."""
    signal.signal(signal.SIGINT, _interrupt)
    try:
        if any(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr)):
            from longspan.cli.terminal import guard

            guard()
        code = main(sys.argv[1:])
        code = _flush(code)
    except KeyboardInterrupt:  # raised outside `main`'s own try
        print(STOPPED, file=sys.stderr)
        code = 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of our output has closed it (`longspan list | head`)
        _discard_output()
        code = 128 + signal.SIGPIPE
    leave(code)


def leave(code: int) -> None:
    """End the process. One of several ends at once: torch's threads for exchanges can abort an orderly exit."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        sys.exit(code)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _flush(code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _discard_output()
        if code != 2:  # with 2, the error is reported already
            print(f"longspan: standard output: {error.strerror}", file=sys.stderr)
        return 2
    return code


def _discard_output() -> None:
    """Redirect standard output to nowhere, so that the interpreter's last flush cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C raises KeyboardInterrupt, except during an import, where the process ends at once.

    Extension modules such as torch's swallow or replace exceptions raised while they are imported.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            if "longspan.files" in sys.modules:
                sys.modules["longspan.files"].remove_unfinished()
            show_cursor = b"\x1b[?25h" if os.isatty(2) else b""
            os.write(2, show_cursor + STOPPED.encode() + b"\n")
            os._exit(128 + number)
        frame = frame.f_back
    raise KeyboardInterrupt
