"""One context of Python: runs code piece by piece, and tells what it displays. Python 3.9."""

from __future__ import annotations

import ast
import asyncio
import base64
import builtins
import inspect
import io
import json
import linecache
import os
import select
import signal
import sys
import traceback
import types
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PIECE = 3000
"""Characters of one line: the kernel writes up to 4096 bytes to a pipe in one go."""

FORMATS = {
    "_repr_html_": "html",
    "_repr_markdown_": "markdown",
    "_repr_svg_": "svg",
    "_repr_png_": "png",
    "_repr_jpeg_": "jpeg",
    "_repr_pdf_": "pdf",
    "_repr_latex_": "latex",
    "_repr_json_": "json",
    "_repr_javascript_": "javascript",
}
"""Methods of a value that represent it, and the format of each."""

TYPES = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
}
"""MIME types, and the format of each."""


class PythonContext:
    """The context.

    Args:
        requests: descriptor from which requests are read.
        idle_s: time without a request after which it ends, should its client never come back.
    """

    def __init__(self, requests: int, idle_s: float) -> None:
        self.requests = requests
        self.idle_s = idle_s
        self.token = ""
        self.count = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        self.names: dict[str, Any] = main.__dict__
        self.names["__builtins__"] = builtins
        builtins.display = self.display  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]

    def serve(self) -> None:
        """Run what is asked for, until nothing more can come."""
        buffer = b""
        while True:
            while b"\n" in buffer:
                line, _, buffer = buffer.partition(b"\n")
                self.answer(json.loads(line))
            try:
                ready, _, _ = select.select([self.requests], [], [], self.idle_s)
                data = os.read(self.requests, 65536) if ready else b""
            except KeyboardInterrupt:  # it came too late for the code that it was for
                continue
            if not data:
                return
            buffer += data

    def answer(self, request: dict[str, Any]) -> None:
        """Run one piece of code, and tell that it has ended."""
        self.token = request["token"]
        self.count += 1
        variables: dict[str, str] = request.get("env_vars") or {}
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            self.run(request["code"])
        except KeyboardInterrupt:  # just when it had ended
            pass
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self.tell({"type": "number_of_executions", "execution_count": self.count})
        self.tell({"type": "end"})
        flush(sys.stderr)
        write(2, f"\x1e{self.token}.{{}}\n")

    def run(self, code: str) -> None:
        """Run code; tell its value, its figures, or its error."""
        name = f"<cell {self.count}>"
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        try:
            value = self.evaluate(code, name)
            self.figures()
            if value is not None:
                self.names["_"] = value
                self.show(value, main=True)
        except BaseException as error:
            self.figures()
            self.fail(error)

    def evaluate(self, code: str, name: str) -> Any:
        """Run code; returns the value of its last line if that is an expression."""
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree: ast.Module = compile(code, name, "exec", flags | ast.PyCF_ONLY_AST)
        last: ast.Expression | None = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
            final = tree.body.pop()
            assert isinstance(final, ast.Expr)
            last = ast.Expression(final.value)
        value = self.part(compile(tree, name, "exec", flags))
        if last is not None:
            value = self.part(compile(last, name, "eval", flags))
        return value

    def part(self, code: types.CodeType) -> Any:
        """Run one part; waits for it if it awaits something."""
        value = eval(code, self.names)
        if not code.co_flags & inspect.CO_COROUTINE:
            return value
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(value)

    def fail(self, error: BaseException) -> None:
        """Tell an error of code."""
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        try:
            lines = traceback.format_exception(type(error), error, frames)
            value = str(error)
        except Exception as other:
            lines, value = [f"{type(error).__name__}\n"], f"{type(other).__name__} in its text"
        told = {"name": type(error).__name__, "value": value, "traceback": "".join(lines)}
        self.tell({"type": "error", **told})

    def display(self, *values: Any, **_: Any) -> None:
        """Show values; code calls it."""
        for value in values:
            self.show(value, main=False)

    def show(self, value: Any, *, main: bool) -> None:
        """Tell a value in all its formats."""
        result: dict[str, Any] = {}
        for name in ("_repr_mimebundle_", *FORMATS):
            represent = method(value, name)
            if represent is None:
                continue
            try:
                found = represent()
            except Exception:
                continue
            if isinstance(found, tuple):  # with metadata
                found = found[0]  # pyright: ignore[reportUnknownVariableType]
            if name in FORMATS:
                if found is not None:
                    result.setdefault(FORMATS[name], plain(found))
            elif isinstance(found, dict):
                bundle: dict[Any, Any] = found  # pyright: ignore[reportUnknownVariableType]
                result.update({TYPES[k]: plain(v) for k, v in bundle.items() if k in TYPES})
        if type(value).__name__ == "DataFrame":
            try:
                columns = json.loads(value.to_json(orient="columns", date_format="iso"))
                result["data"] = {name: [*column.values()] for name, column in columns.items()}
            except Exception:
                pass
        if "text" not in result:
            result["text"] = repr(value)
        self.tell({**result, "type": "result", "is_main_result": main})

    def figures(self) -> None:
        """Tell and close matplotlib's open figures, if code has imported it."""
        pyplot: Any = sys.modules.get("matplotlib.pyplot")
        if pyplot is None or not hasattr(pyplot, "get_fignums"):
            return
        try:
            for number in pyplot.get_fignums():
                figure, png = pyplot.figure(number), io.BytesIO()
                try:
                    figure.savefig(png, format="png", bbox_inches="tight")
                finally:
                    pyplot.close(figure)
                told = {"text": repr(figure), "png": plain(png.getvalue())}
                self.tell({"type": "result", **told, "is_main_result": False})
        except Exception:
            traceback.print_exc()

    def tell(self, event: dict[str, Any]) -> None:
        """Write an event, in pieces that the kernel does not split."""
        try:
            data = json.dumps(event, default=str)
        except Exception:
            data = json.dumps({**event, **dict.fromkeys(("json", "data"))}, default=str)
        flush(sys.stdout)
        for start in range(0, len(data), PIECE):
            end = "." if start + PIECE >= len(data) else "+"
            write(1, f"\x1e{self.token}{end}{data[start : start + PIECE]}\n")


def method(value: object, name: str) -> Any:
    """Return a method of the value's type; None for what claims to have every name."""
    if isinstance(value, type) or not hasattr(type(value), name):
        return None
    found: Any = getattr(value, name, None)
    return found if callable(found) else None


def plain(data: Any) -> Any:
    """Return bytes as base64, and the rest as it is."""
    if isinstance(data, (bytes, bytearray)):
        return base64.b64encode(data).decode()
    return data


def flush(stream: Any) -> None:
    """Write what a stream holds back; code may have put anything in its place."""
    try:
        stream.flush()
    except Exception:
        pass


def write(descriptor: int, text: str) -> None:
    """Write all of a text."""
    data = text.encode("utf-8", "backslashreplace")
    while data:
        data = data[os.write(descriptor, data) :]


def main() -> None:
    """Serve requests on standard input."""
    requests = os.dup(0)  # code must not read them
    os.set_inheritable(requests, False)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    idle_s = float(sys.argv[1])
    sys.argv[:] = [""]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    os.environ.setdefault("MPLBACKEND", "Agg")
    # Figures are shown anyway, so matplotlib's warning that it cannot show them is wrong.
    warnings.filterwarnings("ignore", message=".*non-interactive.*cannot be shown")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    PythonContext(requests, idle_s).serve()


if __name__ == "__main__":
    __file__ = "<string>"  # as `python3 -c` names this code
    main()
