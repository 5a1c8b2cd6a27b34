"""Values and figures that code displays."""

from __future__ import annotations

import _weakref
import io
import os
import sys

from sandbox.displays import DISPLAY_BYTES, DISPLAY_CHARS, DISPLAY_LEFT_OUT, PLACE
from sandbox.framing import from_json, to_json
from sandbox.requests import as_object
from sandbox.workers.python.pretty import PrettyPrinter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from sandbox.workers.python.outbox import Outbox
    from sandbox.workers.python.reporter import Reporter

MAX_CLOSED = 20
"""Figures that code has shown and may still change; matplotlib warns of more open ones, since each
takes much memory."""


class Displayer:
    """Shows values as rich as they can be shown.

    Attributes:
        images: shown by the running code so far.
        pid: of the worker; children that code forks have others.
    """

    pid: int

    REPRESENTATIONS = (
        ("_repr_html_", "text/html"),
        ("_repr_markdown_", "text/markdown"),
        ("_repr_svg_", "image/svg+xml"),
        ("_repr_png_", "image/png"),
        ("_repr_jpeg_", "image/jpeg"),
        ("_repr_latex_", "text/latex"),
        ("_repr_json_", "application/json"),
    )

    def __init__(self, out: Outbox, reporter: Reporter, builtins: dict[str, Any]) -> None:
        self._out = out
        self._reporter = reporter
        self._builtins = builtins
        self.images = 0
        self._figures: dict[int, tuple[_weakref.ref[Any], bytes]] = {}
        self.closed: list[Any] = []  # figures that code has shown

    def begin(self) -> None:
        """Begin with a piece of code."""
        self.images = 0
        self._figures.clear()
        self.closed = []

    def display_hook(self, value: object) -> None:
        if value is not None:
            self._builtins["_"] = None
            self._show(self._bundle(value), hold=True)
            self._builtins["_"] = value

    def display(self, *values: object) -> None:
        """Show values as rich as they can be shown, in their place among what is printed."""
        for value in values:
            self._display(self._bundle(value))

    def display_bundle(self, data: Mapping[str, Any]) -> None:
        """The same for data by MIME type."""
        self._display(self._all_plain(data))

    def _display(self, bundle: dict[str, Any]) -> None:
        bundle = self._bounded(bundle)
        text = bundle.get("text/plain")
        if any(kind.startswith("image/") for kind in bundle):
            self.images += 1
            bundle[PLACE] = self.images
            print(f"[image {self.images}]")
            if isinstance(text, str) and not (text[:1] == "<" and text[-1:] == ">"):
                print(text)  # more than a bare representation: a caption
        elif isinstance(text, str):
            bundle[PLACE] = 0
            print(text)
        if bundle.keys() - {"text/plain", PLACE} and os.getpid() == self.pid:
            self._show(bundle)

    def _show(self, bundle: dict[str, Any], *, hold: bool = False) -> None:
        """
        Args:
            hold: send it with what comes next, which after a trailing expression is the end.
        """
        if os.getpid() != self.pid:
            print(bundle.get("text/plain", ""))
            return
        message = {"type": "display", "data": self._bounded(bundle)}
        if hold:
            self._out.hold(message)
        else:
            self._out.send(message)

    @staticmethod
    def _bounded(bundle: dict[str, Any]) -> dict[str, Any]:
        """The bundle, or only its text if it is larger than what the agent keeps."""
        if sum(len(str(data)) for data in bundle.values()) <= DISPLAY_BYTES:
            return bundle
        text = bundle.get("text/plain")
        return {"text/plain": f"{text}\n{DISPLAY_LEFT_OUT}" if text else DISPLAY_LEFT_OUT}

    def _bundle(self, value: object) -> dict[str, Any]:
        """The value's representations by MIME type; like IPython's, but asked of the type only."""
        try:
            is_plain = type(value) in (int, float, str, bool)
            text = repr(value) if is_plain else PrettyPrinter().format(value)
        except RecursionError:
            text = repr(value)
        found: dict[str, Any] = {"text/plain": text}
        kind = type(value)
        figures = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
        if isinstance(figures, type) and issubclass(kind, figures):
            try:
                found["image/png"] = self._picture(value)
            except Exception as error:
                self._reporter.print_error(error)
            return self._all_plain(found)
        for method, mime in self.REPRESENTATIONS:
            if callable(getattr(kind, method, None)):
                found[mime] = self._ask(value, method)
        if callable(getattr(kind, "_repr_mimebundle_", None)):
            answer = self._first(self._ask(value, "_repr_mimebundle_", include=None, exclude=None))
            found.update(as_object(answer) or {})
        return self._all_plain(found)

    def _all_plain(self, bundle: Mapping[str, Any]) -> dict[str, Any]:
        plain = {str(mime): self._plain(self._first(data)) for mime, data in bundle.items()}
        text = plain.get("text/plain")
        if isinstance(text, str) and len(text) > DISPLAY_CHARS:
            more = len(text) - DISPLAY_CHARS
            plain["text/plain"] = f"{text[:DISPLAY_CHARS]}\n[... {more:,} characters more ...]"
        return {mime: data for mime, data in plain.items() if data is not None}

    @staticmethod
    def _first(answer: Any) -> Any:
        """The data of an answer that may come with metadata, as a tuple."""
        found: Any = answer
        return found[0] if isinstance(answer, tuple) and answer else found

    def _ask(self, value: object, method: str, **arguments: object) -> Any:
        try:
            return getattr(value, method)(**arguments)
        except NotImplementedError:
            return None
        except Exception as error:
            self._reporter.print_error(error)
            return None

    @staticmethod
    def _plain(data: object) -> Any:
        """`data` as it can travel in JSON; None if it can't."""
        if isinstance(data, (bytes, bytearray)):
            import binascii

            return binascii.b2a_base64(data, newline=False).decode()
        try:
            return from_json(to_json(data))  # which are bound before code can replace them
        except (TypeError, ValueError, RecursionError):
            return None

    def _picture(self, figure: Any) -> bytes:
        """A figure of matplotlib as it is now."""
        png = io.BytesIO()
        figure.savefig(png, format="png", bbox_inches="tight")
        figure.stale = False  # matplotlib sets it when the figure changes, or is saved
        self._figures[id(figure)] = (_weakref.ref(figure), png.getvalue())
        return png.getvalue()

    def _changed(self, figure: Any) -> bytes | None:
        """A figure as it is now; None if the running code has displayed it so, or it is empty."""
        known, before = self._figures.get(id(figure), (None, None))
        if known is None or known() is not figure:
            before = None
        elif not getattr(figure, "stale", True):
            return None
        if len(figure.get_children()) < 2:  # no more than its background
            return None
        png = self._picture(figure)
        return None if png == before else png

    def show_figures(self, *, in_place: bool = False) -> None:
        """Display and close matplotlib's open figures, if code has imported it, as notebooks do:
        what is plotted next is another figure. One that was displayed as it is now, or is empty,
        is not displayed.

        Args:
            in_place: display them in their place among what is printed. Those that change after
                that are displayed again.
        """
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None or not hasattr(pyplot, "get_fignums"):
            return
        try:
            figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
            figures = list(dict.fromkeys([*self.closed, *figures]))
            for figure in figures:
                try:
                    if (png := self._changed(figure)) is not None:
                        bundle = {"text/plain": repr(figure), "image/png": self._plain(png)}
                        self._display(bundle) if in_place else self._show(bundle)
                finally:
                    pyplot.close(figure)
            self.closed = figures[-MAX_CLOSED:] if in_place else []
        except Exception as error:
            self._reporter.print_error(error)
