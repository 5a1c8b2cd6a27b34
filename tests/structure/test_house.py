"""Rules of tools/house.py: docstrings open plainly, names are unique and honest, modules short."""

from __future__ import annotations

from pathlib import Path

import pytest

import house

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("folder", house.FOLDERS)
def test_docstrings_open_with_a_noun_phrase_or_an_imperative(folder: str) -> None:
    found = "\n".join(map(str, house.bad_docstrings(ROOT, folder)))
    assert not found, f"name the thing, or say what to do, in the first words:\n{found}"


@pytest.mark.parametrize(
    ("text", "is_bad"),
    [
        ("What came of a call.", True),
        ("Whether it is there.", True),
        ("One that listens.", True),
        ("See the module.", True),
        ("Where they are kept.", True),
        ("In place of a value.", True),
        ("For the process to end.", True),
        ("Outcome of a call.", False),
        ("Return whether it is there.", False),
        ("Socket of one session.", False),  # begins like "So"
        ("Forks of a template.", False),  # like "For"
        ("Witness of an end.", False),  # like "With"
    ],
)
def test_bad_openings_are_found(tmp_path: Path, text: str, is_bad: bool) -> None:
    module = tmp_path / "tools/some.py"
    module.parent.mkdir()
    module.write_text(f'"""{text}"""\n')
    assert bool(house.bad_docstrings(tmp_path, "tools")) is is_bad

    module.write_text(
        f'"""Some module."""\n\nclass Some:\n    LIMIT_S: float = 1.0\n    """{text}"""\n'
    )
    (found,) = [each for each in house.docstrings(tmp_path, "tools") if each.owner == "LIMIT_S"]
    assert found.line == 5
    assert bool(house.bad_docstrings(tmp_path, "tools")) is is_bad


@pytest.mark.parametrize(
    ("text", "is_bad"),
    [("Sends a message.", True), ("Send a message.", False), ("Names of hosts.", False)],
)
def test_functions_are_told_what_to_do(tmp_path: Path, text: str, *, is_bad: bool) -> None:
    module = tmp_path / "tools/some.py"
    module.parent.mkdir()
    module.write_text(f'"""Some module."""\n\n\ndef some() -> None:\n    """{text}"""\n')
    assert bool(house.bad_docstrings(tmp_path, "tools")) is is_bad


def test_no_module_is_too_long() -> None:
    found = [(name, lines) for lines, name in house.module_sizes(ROOT) if lines > house.LARGE_LINES]
    assert not found, f"move a thought of its own to where it belongs: {found}"


def test_each_class_has_a_name_of_its_own() -> None:
    assert not house.repeated_class_names(ROOT)


def test_repeated_class_names_are_found(tmp_path: Path) -> None:
    for name, classes in (("one", "class Some: ...\nclass _Own: ..."), ("two", "class Some: ...")):
        module = tmp_path / f"clients/nsm/{name}.py"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(f"{classes}\nclass _Own: ...\n")
    assert house.repeated_class_names(tmp_path) == ["Some"]


def test_a_repr_names_its_own_class() -> None:
    assert house.misnamed_reprs(ROOT, "agent", "supervisor") == []


@pytest.mark.parametrize(
    ("text", "is_named"),
    [
        ('"<Pool>"', True),
        ('f"<Pool of {self.size}>"', True),
        ('f"Pool({self.size})"', True),
        ('f"<{type(self).__name__} {self.size}>"', True),
        ('f"<PoolPlan of {self.size}>"', False),
        ('f"<Keeper of {self.pool}, a Pool>"', False),
    ],
)
def test_a_repr_of_an_old_name_is_found(tmp_path: Path, text: str, is_named: bool) -> None:
    module = tmp_path / "supervisor/pool.py"
    module.parent.mkdir()
    module.write_text(f"class Pool:\n    def __repr__(self) -> str:\n        return {text}\n")
    found = house.misnamed_reprs(tmp_path, "supervisor")
    assert found == ([] if is_named else ["supervisor/pool.py:2: Pool"])


def test_cycles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert house.cycles({name: frozenset(to) for name, to in graph.items()}) == [["a", "b", "c"]]
