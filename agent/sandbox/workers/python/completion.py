"""Completion of names in Python, without running any code."""

from __future__ import annotations

import contextlib
import itertools
import keyword
import os
import re
import sys

from sandbox.workers.python.displayer import type_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any


MAX_MATCHES = 500

MAX_MATCH = 1000
"""Completions that are offered, and characters of each."""

# What classes have and inherit, whatever their metaclasses say.
_mro_of: Any = vars(type)["__mro__"].__get__

_members_of: Any = vars(type)["__dict__"].__get__


class PythonCompleter:
    """Names that could follow a text, found without running any code of the namespace.

    Attributes are looked up where they are kept, in the dictionaries of modules, instances and
    classes, by C code that nobody can override; what takes a property, `__getattr__` or the like
    to find is not found. Dictionaries are gone through rather than asked, since asking one may
    compare keys by a method of theirs.
    """

    MISSING = object()
    MAX_NAMES = 200_000
    PROXY = type_of(vars(type))
    GETSET = type_of(vars(type)["__dict__"])
    MEMBER = type_of(vars(type(lambda: None))["__globals__"])
    # Compiled on first use: most sessions have nobody who types.
    DOTTED = r"((?:[^\W\d]\w*\s*\.\s*)*)([^\W\d]\w*)?\Z"
    SUBSCRIPT = r"((?:[^\W\d]\w*\s*\.\s*)*[^\W\d]\w*)\s*\[\s*\Z"
    FROM = r"\s*from\s+([\w.]+)\s+import\s+\(?(?:[\w\s,]*,\s*)?(\w*)\Z"
    IMPORT = r"\s*(?:from|import)\s+(?:[\w\s.,]*,\s*)?((?:\w+\.)*)(\w*)\Z"
    TEXTS = (
        r"(?s)#[^\n]*|"
        r'"""(?:\\.|[^\\])*?"""|' + r"'''(?:\\.|[^\\])*?'''|"
        r'"(?!"")(?:\\.|[^"\\\n])*"|' + r"'(?!'')(?:\\.|[^'\\\n])*'|"
        r'(?P<open>"""|' + r"'''|[" + r'"' + r"'])"
    )
    MODULE_ENDS = (".py", ".pyc", ".so")

    def __init__(self, namespace: Mapping[str, Any], builtins: Mapping[str, Any]) -> None:
        self._namespace = namespace
        self._builtins = builtins

    def complete(self, before: str, following: str) -> tuple[str, list[str]]:
        """Find the text before the cursor that is to be replaced, and the replacements; a character
        may follow at the cursor."""
        line = before[-MAX_MATCH:].rpartition("\n")[2]
        in_text, quote, start = self._open_text(before)
        if in_text:
            return self._complete_key(before, quote, start, following)
        if found := re.match(self.FROM, line):
            return found[2], self._offered(self._of_module(found[1]), found[2])
        if found := re.match(self.IMPORT, line):
            return found[2], self._offered(self._modules(found[1].split(".")[:-1]), found[2])
        dotted = re.search(self.DOTTED, line)
        if dotted is None:
            return "", []
        path, prefix = dotted[1], dotted[2] or ""
        preceding = line[: dotted.start()][-1:]
        if preceding == "." or (path and preceding in {")", "]", "}", '"', "'"}):
            return prefix, []
        if preceding.isdigit():
            return "", []
        if not path:
            return prefix, self._offered(self._top_level(), prefix)
        value = self._resolve(path)
        if value is self.MISSING:
            return prefix, []
        return prefix, self._offered(self._names(value), prefix)

    # The text.

    def _open_text(self, before: str) -> tuple[bool, str, int]:
        """Find out whether the cursor is in a comment or string; then its quote and where it
        begins."""
        place = 0
        texts = re.compile(self.TEXTS)
        while found := texts.search(before, place):
            place = found.end()
            quote = found["open"]
            if quote is None:
                if found[0][0] == "#" and place == len(before):
                    return True, "", place
                continue
            if len(quote) == 1:
                line_end = before.find("\n", place)
                if line_end >= 0:
                    place = line_end
                    continue
            return self._in_expression(before, found.start(), place), quote, place
        return False, "", 0

    @staticmethod
    def _in_expression(before: str, start: int, place: int) -> bool:
        """False where an f-string's braces make the cursor's place code again."""
        letters = re.search(r"[A-Za-z]*\Z", before[max(0, start - 3) : start])
        if letters is None or "f" not in letters[0].lower():
            return True
        text = before[place:].replace("{{", "")
        return text.rfind("{") <= text.rfind("}")

    def _complete_key(
        self, before: str, quote: str, start: int, following: str
    ) -> tuple[str, list[str]]:
        """Keys of a dictionary whose subscript has been begun."""
        prefix = before[start:]
        head = before[max(0, start - MAX_MATCH) : start - 1]
        found = re.search(self.SUBSCRIPT, head.rpartition("\n")[2]) if len(quote) == 1 else None
        value = self._resolve(found[1] + ".") if found else self.MISSING
        if value is self.MISSING or not self._inherits(type_of(value), dict):
            return prefix, []
        end = "" if following == quote else f"{quote}]"
        keys = (
            key.replace("\\", "\\\\").replace(quote, f"\\{quote}")
            for key in self._keys(value)
            if len(key) < MAX_MATCH // 2 and key.isprintable()
        )
        return prefix, sorted({key + end for key in keys if key.startswith(prefix)})[:MAX_MATCHES]

    def _offered(self, names: Iterable[str], prefix: str) -> list[str]:
        kept = [name for name in names if name.startswith(prefix)]
        if not prefix.startswith("_"):
            kept = [name for name in kept if name[:1] != "_"]
        fit = (name for name in sorted(dict.fromkeys(kept)) if self._may_be_name(name))
        return list(itertools.islice(fit, MAX_MATCHES))

    @staticmethod
    def _may_be_name(text: str) -> bool:
        return len(text) <= MAX_MATCH and text.isidentifier()

    # Objects.

    @staticmethod
    def _inherits(kind: Any, base: type[object]) -> bool:
        """Like `issubclass`, without the comparisons of `in`, which metaclasses may define."""
        return any(other is base for other in _mro_of(kind))

    def _keys(self, mapping: Any) -> list[str]:
        """Keys of a mapping that are plain strings."""
        owner: Any = self.PROXY if type_of(mapping) is self.PROXY else dict
        view = owner.keys(mapping)
        for _ in range(3):
            with contextlib.suppress(RuntimeError):  # another thread has changed it
                keys: list[Any] = list(itertools.islice(view, self.MAX_NAMES))
                return [key for key in keys if type(key) is str]
        return []

    def _find(self, mapping: Any, name: str) -> Any:
        owner: Any = self.PROXY if type_of(mapping) is self.PROXY else dict
        view = owner.items(mapping)
        for _ in range(3):
            with contextlib.suppress(RuntimeError):
                for key, value in view:
                    if type(key) is str and key == name:
                        return value
                break
        return self.MISSING

    def _find_inherited(self, kind: Any, name: str) -> Any:
        for base in _mro_of(kind):
            value = self._find(_members_of(base), name)
            if value is not self.MISSING:
                return value
        return self.MISSING

    def _is_class(self, value: object) -> bool:
        return self._inherits(type_of(value), type)

    def _own(self, value: object) -> Any:
        """The dictionary of an instance or module; an empty one if it has none."""
        getter = self._find_inherited(type_of(value), "__dict__")
        is_member = type_of(getter) is self.GETSET or type_of(getter) is self.MEMBER
        # By its own name: others, such as those of a text file, ask objects of whatever class.
        if is_member and getter.__name__ == "__dict__":
            with contextlib.suppress(TypeError, AttributeError):  # another class's descriptor
                found = getter.__get__(value)
                if self._inherits(type_of(found), dict):
                    return found
        return {}

    def _attribute(self, value: Any, name: str) -> Any:
        if self._is_class(value):
            return self._undecorated(self._find_inherited(value, name))
        inherited = self._find_inherited(type_of(value), name)
        kind = type_of(inherited)
        if kind is self.MEMBER:
            try:
                return inherited.__get__(value)
            except (AttributeError, TypeError):  # nothing in the slot, or another class's
                return self.MISSING
        for method in ("__set__", "__delete__"):  # it would come before the instance's own
            if self._find_inherited(kind, method) is not self.MISSING:
                return self.MISSING
        own = self._find(self._own(value), name)
        return self._undecorated(inherited) if own is self.MISSING else own

    def _undecorated(self, value: Any) -> Any:
        """Return a class's attribute without its descriptor, unless only code can say what that
        gives."""
        kind = type_of(value)
        if kind is staticmethod or kind is classmethod:
            return value.__func__
        functions = type(lambda: None), type(len), type(str.join), type(object.__init__)
        if any(kind is function for function in functions):
            return value
        if self._find_inherited(kind, "__get__") is self.MISSING:
            return value
        return self.MISSING

    def _resolve(self, path: str) -> Any:
        first, *rest = [name.strip() for name in path.split(".")[:-1]]
        value = self._find(self._namespace, first)
        if value is self.MISSING:
            value = self._find(self._builtins, first)
        for name in rest:
            if value is self.MISSING:
                break
            value = self._attribute(value, name)
        return value

    def _names(self, value: Any) -> Iterator[str]:
        kinds = _mro_of(value if self._is_class(value) else type_of(value))
        mappings = [_members_of(kind) for kind in kinds]
        if not self._is_class(value):
            own = self._own(value)
            is_module = self._inherits(type_of(value), type_of(sys))
            mappings = [own] if is_module else [own, *mappings]
        for mapping in mappings:
            yield from self._keys(mapping)

    def _top_level(self) -> Iterator[str]:
        yield from self._keys(self._namespace)
        yield from self._keys(self._builtins)
        yield from keyword.kwlist

    # Modules.

    def _loaded(self, name: str) -> Any:
        modules: Any = sys.modules
        if not self._inherits(type_of(modules), dict):
            return self.MISSING
        return self._find(modules, name)

    def _of_module(self, name: str) -> Iterator[str]:
        module = self._loaded(name)
        if module is not self.MISSING:
            yield from self._names(module)
        yield from self._modules(name.split("."))

    def _modules(self, parents: list[str]) -> Iterator[str]:
        """Modules that could be imported, of a package or at the top."""
        if not parents:
            yield from sys.builtin_module_names
        loaded = self._loaded(".".join(parents))
        paths: Any = sys.path
        below = parents
        if loaded is not self.MISSING and parents:
            paths, below = self._find(self._own(loaded), "__path__"), []
        if type_of(paths) is not list:
            return
        entries: list[Any] = list(paths)
        for path in entries:
            if type(path) is str:
                yield from self._modules_in(os.path.join(path or ".", *below))

    def _modules_in(self, directory: str) -> Iterator[str]:
        with contextlib.suppress(OSError, ValueError), os.scandir(directory) as entries:
            for number, entry in enumerate(entries):
                if number >= self.MAX_NAMES:
                    break
                stem, dot, _ = entry.name.partition(".")
                if entry.name.endswith(self.MODULE_ENDS) if dot else entry.is_dir():
                    yield stem
