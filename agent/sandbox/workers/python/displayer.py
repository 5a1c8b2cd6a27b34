"""Values and figures that code displays.

Libraries that show values in a browser, a viewer or a notebook are changed to display them as
`display` does, since none of these is here.
"""

from __future__ import annotations

import _weakref
import contextlib
import io
import os
import sys

from sandbox.capture import DISPLAY_BYTES, DISPLAY_CHARS, DISPLAY_LEFT_OUT, PLACE
from sandbox.framing import as_object, from_json, to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from sandbox.workers.python.reporter import Outbox, Reporter


class PrettyPrinter:
    """Text of a container as `repr` gives it, over lines if it is long, and bounded.

    Only the containers of Python itself are taken apart; others have a representation of their own.
    """

    WIDTH = 80
    CHARS = 20_000
    """About as much is shown; then each container says how many items are left out."""
    MAX_INDENT = 12

    def __init__(self) -> None:
        import collections

        self._room = self.CHARS
        self._within: set[int] = set()
        empty: dict[Any, Any] = {}
        self._ends: dict[Any, tuple[str, str]] = {
            list: ("[", "]"),
            tuple: ("(", ")"),
            set: ("{", "}"),
            frozenset: ("frozenset({", "})"),
            type(empty.keys()): ("dict_keys([", "])"),
            type(empty.values()): ("dict_values([", "])"),
            type(empty.items()): ("dict_items([", "])"),
        }
        self._mappings: dict[Any, tuple[str, str]] = {
            dict: ("{", "}"),
            collections.Counter: ("Counter({", "})"),
            collections.defaultdict: ("defaultdict(", "})"),
        }

    def format(self, value: Any, indent: int = 0) -> str:
        """Format a value, before each of whose lines are so many columns."""
        kind = type_of(value)
        is_mapping = kind in self._mappings
        ends = self._mappings.get(kind) or self._ends.get(kind)
        if ends is None or not value:
            return self._leaf(value)
        opening, closing = ends
        if id(value) in self._within:
            return f"{opening}...{closing}"
        if opening == "defaultdict(":
            opening += f"{value.default_factory!r}, {{"
        if kind is tuple and len(value) == 1:
            closing = ",)"
        self._within.add(id(value))
        inner = indent + min(len(opening), self.MAX_INDENT)
        items: Any = value
        if is_mapping:
            items = value.most_common() if opening == "Counter({" else value.items()
        parts: list[str] = []
        nested = is_mapping
        for item in items:
            if self._room <= 0:
                parts.append(f"... {len(value) - len(parts):,} more")
                break
            if is_mapping:
                key, item = item  # noqa: PLW2901  # a pair
                before = f"{self._leaf(key)}: "
                parts.append(before + self.format(item, inner + len(before)))
            else:
                nested = nested or type_of(item) in self._ends or type_of(item) in self._mappings
                parts.append(self.format(item, inner))
        self._within.discard(id(value))
        line = f"{opening}{', '.join(parts)}{closing}"
        if "\n" not in line and indent + len(line) <= self.WIDTH:
            return line
        lines = parts if nested else self._packed(parts, self.WIDTH - inner)
        return opening + (",\n" + " " * inner).join(lines) + closing

    def _leaf(self, value: object) -> str:
        text = repr(value)
        self._room -= len(text) + 2
        return text

    @staticmethod
    def _packed(parts: list[str], width: int) -> list[str]:
        """Join parts to lines, as many in each as there is room for."""
        lines = [parts[0]]
        for part in parts[1:]:
            if len(lines[-1]) + len(part) + 3 <= width:
                lines[-1] += f", {part}"
            else:
                lines.append(part)
        return lines


def type_of(value: object) -> Any:
    return type(value)


MAX_CLOSED = 20
"""Figures that code has shown and may still change; matplotlib warns of more open ones, since each
takes much memory."""


class Displayer:
    """Shows values as rich as they can be shown, in the process `pid`; children that code forks
    have others."""

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
        """Send a bundle; if held, with what comes next, which after a trailing expression is the
        end."""
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


def has_shell() -> bool:
    """Return whether this is a kernel of notebooks, as a fork of the interpreter may be: it has
    ways of its own to display."""
    shell = sys.modules.get("IPython.core.interactiveshell")
    return shell is not None and bool(shell.InteractiveShell.initialized())


class Shows:
    """Changes of these libraries, each made once code has imported the library."""

    def __init__(self, displayer: Displayer) -> None:
        self._displayer = displayer
        self._steps: dict[str, Callable[[Any], None]] = {
            "IPython.core.display_functions": self._ipython,
            "PIL.ImageShow": self._pillow,
            "matplotlib.figure": self._figure,
            "matplotlib.pyplot": self._pyplot,
            "bokeh.util.browser": self._bokeh,
            "plotly.io._renderers": self._plotly,
        }
        for name in self._steps:  # a template may have imported them
            self.imported(name)

    def imported(self, name: str) -> None:
        """Change a module that was imported if it is one of these; some versions need none."""
        step, module = self._steps.get(name), sys.modules.get(name)
        if step is not None and module is not None:
            with contextlib.suppress(Exception):
                step(module)

    def _ipython(self, module: Any) -> None:
        """Replace the functions that, without a shell of IPython, print values or start one."""
        from_shell, displayer = module.display, self._displayer

        def display(*objs: Any, raw: bool = False, **options: Any) -> Any:
            if has_shell():
                return from_shell(*objs, raw=raw, **options)
            for each in objs:
                if raw:
                    displayer.display_bundle(each)
                else:
                    displayer.display(each)
            return None

        def publish(data: Any, *arguments: Any, **options: Any) -> None:
            if has_shell():
                publish_in_shell(data, *arguments, **options)
            else:
                displayer.display_bundle(data)

        def clear(*arguments: Any, **options: Any) -> None:
            if has_shell():
                clear_in_shell(*arguments, **options)

        publish_in_shell, clear_in_shell = module.publish_display_data, module.clear_output
        module.display, module.publish_display_data = display, publish
        module.clear_output = clear

    def _pillow(self, module: Any) -> None:
        """Register a viewer before its own, which are programs with windows."""
        displayer = self._displayer

        class Viewer(module.Viewer):  # type: ignore[misc]
            def show(self, image: object, **_: object) -> int:
                displayer.display(image)
                return 1

        module.register(Viewer(), -1)

    def _figure(self, module: Any) -> None:
        """Have `Figure.show` display, since there is no window."""
        show, displayer = module.Figure.show, self._displayer

        def show_here(self: Any, warn: bool = True) -> Any:
            return show(self, warn) if has_shell() else displayer.display(self)

        module.Figure.show = show_here

    def _pyplot(self, module: Any) -> None:
        """Have `show` display, and `savefig` save what was shown if nothing was plotted since."""
        show, save, displayer = module.show, module.savefig, self._displayer

        def show_here(*arguments: Any, **options: Any) -> Any:
            if not has_shell():
                displayer.show_figures(in_place=True)
            return show(*arguments, **options)

        def save_here(*arguments: Any, **options: Any) -> Any:
            if displayer.closed and not module.get_fignums() and not has_shell():
                return displayer.closed[-1].savefig(*arguments, **options)
            return save(*arguments, **options)

        module.show, module.savefig = show_here, save_here

    def _bokeh(self, module: Any) -> None:
        """Display the file that would be opened in a browser."""
        find, displayer = module.get_browser_controller, self._displayer

        class Controller:
            def open(self, url: str, *_: object, **__: object) -> bool:
                path = url.removeprefix("file://")
                with open(path, encoding="utf-8") as file:
                    displayer.display_bundle({"text/plain": path, "text/html": file.read()})
                return True

        def controller(browser: str | None = None) -> Any:
            return Controller() if browser is None else find(browser)

        module.get_browser_controller = controller

    def _plotly(self, module: Any) -> None:
        """Display the page that would be opened in a browser; without one, nothing would happen."""
        displayer = self._displayer

        class Renderer(module.ExternalRenderer):  # type: ignore[misc]
            def render(self, figure: Any) -> None:
                io = sys.modules["plotly.io"]
                page = io.to_html(figure, full_html=False, include_plotlyjs="cdn", validate=False)
                kinds = ", ".join(str(each.get("type", "scatter")) for each in figure["data"])
                displayer.display_bundle({"text/plain": f"Figure of {kinds}", "text/html": page})

        module.renderers["browser"] = Renderer()
        if not module.renderers.default:
            module.renderers.default = "browser"
