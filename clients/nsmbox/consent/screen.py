"""The screen on which a person sees what a box gives, before it starts. Pure.

Somebody who looks for ten seconds sees first what cannot be taken back: what is changed, what is
reached, which secrets are passed. The screen fits the terminal whatever the plan holds; what does
not fit is counted, and shown on request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from nsm.cli.render.formats import columns
from nsm.dataclass import dataclass
from nsmbox.consent.readable import MASKED, legible, masked, names_secret, path, shortened
from nsmbox.consent.summary import Outline, SummaryItem, outline
from nsmbox.model.plan import RUN_DIRECTORY

if TYPE_CHECKING:
    from nsmbox.model.plan import BoxLimits, Mount, Network, Plan, Variable

MIN_COLUMNS, MAX_COLUMNS = 30, 110
"""Narrower terminals wrap; in wider ones lines would be too long to read."""

MIN_ROWS = 16
"""Less than this and the screen scrolls."""

QUESTION = "Start it? [y]es, and do not ask again   [o]nce   [d]etails   [n]o: "
SHORT_QUESTION = "Start it? [y]es [o]nce [d]etails [n]o: "

_LABEL_COLUMNS = 12
_VALUE_COLUMNS = 34
_SYSTEM = ("/usr", "/etc", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/nix", "/opt")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """Some lines behind a label.

    Attributes:
        least: lines that it keeps when room is short; it keeps more if there is room.
        each: every item has a line of its own.
        separator: between items of a line.
    """

    label: str
    items: tuple[str, ...]
    least: int = 1
    each: bool = False
    separator: str = "  "


def screen(
    plan: Plan,
    *,
    home: str,
    size: tuple[int, int] = (80, 24),
    changes: Sequence[str] | None = None,
    agreed_on: str = "",
) -> str:
    """The whole screen, without the question.

    Args:
        size: columns and rows of the terminal; the question has a row of these, too.
        changes: changes since somebody agreed to a box here; None if nobody did.

    Returns:
        Lines that each end in a newline, two rows fewer than there are.
    """
    width = _width(size[0])
    head = _head(plan, home, agreed_on if changes is not None else "")
    sections = _sections(plan, home)
    if changes is not None:
        sections.insert(0, _Section(label="changed", items=tuple(changes), least=4, each=True))
    lines = _wrapped(head, width, 4, " ")
    lines += _fitted(sections, width, max(MIN_ROWS, size[1]) - len(lines) - 3)
    return "".join(f"{line}\n" for line in ["", *lines, ""])


def question(size: tuple[int, int]) -> str:
    """Make the question below it."""
    return QUESTION if size[0] > len(QUESTION) + 3 else SHORT_QUESTION


def details(plan: Plan, *, home: str) -> str:
    """Everything that there is in the box, a line each."""
    lines = ["", "mounts, later ones over earlier ones:"]
    lines += [f"  {_mount(mount, home)}" for mount in plan.mounts]
    if plan.sockets:
        lines.append("  sockets of nsm's own, made for this box")
    lines += ["", "variables:"]
    lines += [f"  {_assigned(variable)}" for variable in plan.variables]
    lines += ["", f"network: {_reach(plan.network)}"]
    if plan.programs:
        lines += ["", f"can start on this computer, outside of the box: {_listed(plan.programs)}"]
    if plan.secrets:
        lines += ["", f"uses secrets without seeing them: {_listed(plan.secrets)}"]
    lines += ["", f"limits: {', '.join(limits(plan.limits, all_of_them=True))}"]
    lines += ["", f"command: {' '.join(map(legible, plan.asked))}"]
    if plan.notes:
        lines += ["", *(f"note: {sentence(note)}" for note in plan.notes)]
    return "".join(f"{line}\n" for line in [*lines, ""])


def differences(old: Plan, new: Plan, *, home: str) -> list[str]:
    """List the differences of two plans: new ones after `+`, removed ones after `-`; those that
    give the box more first."""
    before, after = outline(old), outline(new)
    more, fewer = _without(new.programs, old.programs), _without(old.programs, new.programs)
    gone = {item.target for item in _more(after, before, "change")}
    told = [f"+ can start {legible(name)}, outside of the box" for name in more]
    told += [f"+ uses the secret {legible(name)}" for name in _without(new.secrets, old.secrets)]
    told += [f"+ can change {_place(item, home)}" for item in _more(before, after, "change")]
    told += [
        f"- protected {_place(item, home)}"
        for item in _more(after, before, "protected")
        if item.target not in gone
    ]
    if old.network != new.network:
        told.append(f"+ network: {_reach(new.network)}")
        told.append(f"- network: {_reach(old.network)}")
    names = {variable.name for variable in old.variables}
    told += [f"+ variable {_assigned(v)}" for v in new.variables if v.name not in names]
    told += [f"- hidden {_place(item, home)}" for item in _more(after, before, "hidden")]
    told += [f"+ can read {_place(item, home)}" for item in _more(before, after, "read")]
    told += [f"- can change {_place(item, home)}" for item in _more(after, before, "change")]
    told += [f"+ protected {_place(item, home)}" for item in _more(before, after, "protected")]
    told += [f"+ hidden {_place(item, home)}" for item in _more(before, after, "hidden")]
    told += [f"- can read {_place(item, home)}" for item in _more(after, before, "read")]
    names = {variable.name for variable in new.variables}
    told += [f"- variable {legible(v.name)}" for v in old.variables if v.name not in names]
    told += [f"- can start {legible(name)}" for name in fewer]
    told += [f"- uses the secret {legible(name)}" for name in _without(old.secrets, new.secrets)]
    if old.sockets != new.sockets:
        told.append(f"{'+' if new.sockets else '-'} sessions of nsm")
    return told or ["only how it is put together"]


def _without(names: Sequence[str], others: Sequence[str]) -> list[str]:
    return [name for name in names if name not in others]


def _more(before: Outline, after: Outline, access: str) -> list[SummaryItem]:
    had: tuple[SummaryItem, ...] = getattr(before, access)
    has: tuple[SummaryItem, ...] = getattr(after, access)
    return [item for item in has if item not in had]


def _width(wide: int) -> int:
    return min(max(wide, MIN_COLUMNS), MAX_COLUMNS) - 1  # the last column makes some wrap


def _head(plan: Plan, home: str, agreed_on: str) -> tuple[str, ...]:
    where, profile = path(plan.directory, home), legible(plan.profile)
    if agreed_on:
        words = f"It has changed since you agreed to it on {agreed_on}."
        return ("A", "box", "for", profile, "in", f"{where}.", *words.split())
    return ("A", "box", "for", profile, "in", f"{where}:")


def not_made(plan: Plan, home: str) -> tuple[list[str], list[str]]:
    """List what the box cannot make.

    Returns:
        Names, those in the working directory first; and a phrase for each other directory in which
        it cannot make the same ones.
    """
    top = f"{plan.directory}/"
    targets = sorted(plan.cannot_make)
    names = [target.removeprefix(top) for target in targets if target.startswith(top)]
    rest: list[str] = []
    also: dict[str, None] = {}
    for target in targets:
        if target.startswith(top):
            continue
        place = next((target.removesuffix(f"/{n}") for n in names if target.endswith(f"/{n}")), "")
        if place:
            also[place] = None
        else:
            rest.append(path(target, home))
    return [*map(legible, names), *rest], [f"(the same in {path(each, home)})" for each in also]


def _sections(plan: Plan, home: str) -> list[_Section]:
    """Sections of the screen, in order."""
    found = outline(plan)
    stand_ins = plan.cannot_make
    names, places = not_made(plan, home)
    hidden = [item for item in found.hidden if item.target not in stand_ins]
    sections = [
        _Section(label="runs", items=_command(plan, home), separator=" "),
        _Section(label="can start", items=_programs(plan.programs)),
        _Section(label="secrets", items=_secrets(plan.secrets)),
        _Section(
            label="can change",
            items=tuple(_place(item, home) for item in found.change) or ("nothing",),
            least=3,
            each=True,
        ),
        _Section(
            label="protected",
            items=tuple(
                _inside(item, plan.directory, home)
                for item in found.protected
                if item.target not in stand_ins
            ),
        ),
        _Section(label="cannot make", items=(*places, *names)),
        _Section(label="network", items=_network(plan.network), separator=" "),
        _Section(label="variables", items=_variables(plan.variables), least=2),
        _Section(label="can read", items=_read(found.read, home)),
        _Section(label="hidden", items=_hidden(hidden, plan, home)),
        _Section(label="limits", items=limits(plan.limits)),
        _Section(
            label="note",
            items=tuple(word for note in plan.notes for word in sentence(note).split()),
            least=2,
            separator=" ",
        ),
    ]
    return [section for section in sections if section.items]


_KEEPS = (
    *(
        "runs",
        "note",
        "limits",
        "cannot make",
        "hidden",
        "can read",
        "variables",
        "protected",
        "network",
    ),
)
"""Sections in the order in which they are shortened; those that are not named come last."""


def _fitted(sections: list[_Section], width: int, rows: int) -> list[str]:
    """The sections' lines: as many as there is room for, no section without any."""
    most = [len(_lines(section, width, 10_000)) for section in sections]
    excess = sum(most) - rows
    order = [index for word in _KEEPS for index, s in enumerate(sections) if s.label == word]
    order += [index for index in range(len(sections)) if index not in order]
    for index in order:
        if excess > 0:
            fewer = max(min(most[index], sections[index].least), most[index] - excess)
            excess -= most[index] - fewer
            most[index] = fewer
    return [
        line
        for section, at_most in zip(sections, most, strict=True)
        for line in _lines(section, width, at_most)
    ]


def _lines(section: _Section, width: int, at_most: int) -> list[str]:
    room = width - _LABEL_COLUMNS
    if section.each:
        texts = [shortened(item, room) for item in section.items]
        left = len(texts) - at_most
        if left > 0:
            texts = [*texts[: at_most - 1], f"... and {left + 1} more"]
    else:
        texts = _wrapped(section.items, room, at_most, section.separator)
    return [
        f"{'' if number else section.label:<{_LABEL_COLUMNS}}{text}"
        for number, text in enumerate(texts)
    ]


def _wrapped(items: Sequence[str], width: int, at_most: int, separator: str = "  ") -> list[str]:
    """Items on as few lines as can be; what is over is counted on the last."""
    lines: list[str] = []
    for number, item in enumerate(items):
        text = shortened(item, width)
        if lines and columns(lines[-1]) + len(separator) + columns(text) <= width:
            lines[-1] += separator + text
        elif len(lines) < at_most:
            lines.append(text)
        else:
            return _cut_short(lines, items, number, width, separator)
    return lines


def _cut_short(
    lines: list[str], items: Sequence[str], shown: int, width: int, separator: str
) -> list[str]:
    """Take items off the last line until what is left out can be said there."""
    *before, last = lines
    on_last = 1
    while separator.join(shortened(i, width) for i in items[shown - on_last : shown]) != last:
        on_last += 1
    while True:
        kept = [shortened(item, width) for item in items[shown - on_last : shown]]
        what = " words" if separator == " " else ""
        more = f"... and {len(items) - shown} more{what}"
        text = separator.join([*kept, more])
        if columns(text) > width and len(kept) == 1:
            room = width - len(separator) - len(more)
            text = separator.join([shortened(kept[0], max(room, 0)), more]) if room > 7 else more
        if columns(text) <= width or not kept:
            return [*before, text]
        shown, on_last = shown - 1, on_last - 1


def limits(limits: BoxLimits, *, all_of_them: bool = False) -> tuple[str, ...]:
    """The limits of a box in a few words each."""
    told = (
        f"memory {_size(limits.memory_mb)}",
        f"HOME {_size(limits.home_mb)}",
        f"/tmp {_size(limits.tmp_mb)}",  # noqa: S108
        f"{limits.processes} processes",
    )
    if not all_of_them:
        return told
    return (
        *told,
        f"/dev/shm {_size(limits.shm_mb)}",  # noqa: S108
        f"{limits.descriptors} descriptors",
        f"processor weight {limits.cpu_weight}",
    )


def _size(megabytes: int) -> str:
    return f"{megabytes / 1024:.3g} GiB" if megabytes >= 1024 else f"{megabytes} MiB"


def _command(plan: Plan, home: str) -> tuple[str, ...]:
    program, *arguments = plan.asked
    return (path(program, home), *map(legible, arguments))


def _place(item: SummaryItem, home: str) -> str:
    if item.elsewhere:
        return f"{path(item.source, home)}  as {path(item.target, home)}"
    return path(item.target, home)


def _inside(item: SummaryItem, directory: str, home: str) -> str:
    """Path relative to the working directory if it lies there, else whole."""
    if item.target.startswith(f"{directory}/"):
        return legible(item.target[len(directory) + 1 :])
    return path(item.target, home)


def _read(items: Iterable[SummaryItem], home: str) -> tuple[str, ...]:
    """Names of readable paths: the person's own first; of the system's, the larger ones by name and
    the others by number.
    """
    own: list[str] = []
    system: dict[str, int] = {}
    items = list(items)
    of_nsm = [item for item in items if item.target.startswith(f"{RUN_DIRECTORY}/")]
    for item in items:
        if item in of_nsm:
            continue
        top = next((top for top in _SYSTEM if f"{item.target}/".startswith(f"{top}/")), None)
        if top is None:
            own.append(_place(item, home))
        else:
            system[top] = 0 if item.target == top else system.get(top, 0) + 1
    tops = (f"{count} of {top}" if count else top for top, count in system.items())
    return (*own, *tops, *(["nsm itself"] if of_nsm else []))


def _hidden(items: Sequence[SummaryItem], plan: Plan, home: str) -> tuple[str, ...]:
    programs = [item for item in items if item.target.startswith(("/usr/", "/bin/"))]
    others = [_inside(item, plan.directory, home) for item in items if item not in programs]
    if programs:
        names = sorted(item.target.rpartition("/")[2] for item in programs)
        shown = ", ".join(map(legible, names[:3])) + (", ..." if len(names) > 3 else "")
        others.append(f"{len(programs)} programs ({shown})")
    if any(mount.kind == "tmpfs" and mount.target == home for mount in plan.mounts):
        others.insert(0, "all else in ~")
    return tuple(others)


def _programs(names: Sequence[str]) -> tuple[str, ...]:
    """First that it is no program of the box: what it does is done with the person's rights."""
    return ("on this computer, outside of the box:", *map(legible, names)) if names else ()


def _secrets(names: Sequence[str]) -> tuple[str, ...]:
    return ("used without being seen:", *map(legible, names)) if names else ()


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(legible, names))


def _network(network: Network) -> tuple[str, ...]:
    """Words."""
    match network.mode:
        case "host":
            return tuple("all that this computer reaches, its own ports too".split())
        case "none":
            return ("nothing",)
        case "allow":
            return ("only", *map(legible, network.allow)) if network.allow else ("nothing",)


def _reach(network: Network) -> str:
    return " ".join(_network(network))


def _variables(variables: Iterable[Variable]) -> tuple[str, ...]:
    """Secrets first: they are what one may not want to give."""
    shown = sorted(variables, key=lambda variable: not _is_secret(variable))
    return tuple(
        shortened(_assigned(variable), len(variable.name) + _VALUE_COLUMNS) for variable in shown
    )


def _is_secret(variable: Variable) -> bool:
    return variable.secret or names_secret(variable.name)


def _assigned(variable: Variable) -> str:
    value = masked(variable.name, variable.value, secret=variable.secret)
    shown = value if value == MASKED else legible(value) if value else ""
    return f"{legible(variable.name)}={shown}"


_KINDS = {
    "bind": "can change",
    "ro-bind": "can read",
    "tmpfs": "empty, private",
    "dir": "empty, private",
    "proc": "own processes",
    "dev": "few devices",
    "symlink": "link",
    "file": "made, private",
    "ro-file": "made, read-only",
    "mask": "hidden",
    "link": "link, as it is",
}


def _mount(mount: Mount, home: str) -> str:
    text = f"{_KINDS[mount.kind]:<15}  {path(mount.target, home)}"
    if mount.kind in ("symlink", "link"):
        text += f" -> {legible(mount.source)}"
    elif mount.source not in ("", mount.target):
        text += f" from {path(mount.source, home)}"
    return text + (f"  ({sentence(mount.why)})" if mount.why else "")


def sentence(text: str) -> str:
    """Words of nsm's own, in which there may be a name of somebody else's."""
    return " ".join(word if _is_plain(word) else legible(word)[1:-1] for word in text.split())


def _is_plain(word: str) -> bool:
    return word.isascii() and word.isprintable()
