"""Libraries that show values in a browser, a viewer or a notebook. None of these is here, so they
are changed to display values as `display` does.
"""

from __future__ import annotations

import contextlib
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sandbox.workers.python.displayer import Displayer


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
