"""`Saves`: operations on saves. Blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.client.retry import done_again
from nsm.saves.kept import MAX_MB

if TYPE_CHECKING:
    from nsm.client.blocking import Client
    from nsm.saves.reports import Restored, Saved
    from nsm.transcripts.document import SessionTranscript


class Saves:
    """Operations on saves.

    Args:
        client: its connection passes descriptors, as one to the supervisor's own socket does.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def save(
        self,
        target: str,
        path: str | None = None,
        *,
        timeout_s: float | None = None,
        max_mb: int = MAX_MB,
    ) -> Saved:
        """Write what is in a session into a file. The session itself stays as it was.

        If the supervisor is killed or restarted meanwhile, the save is begun again.

        Args:
            target: an id, a name, or ``SCOPE/NAME``.
            path: of the file; None for nsm's directory, under the session's name. An older save
                there is replaced.
            timeout_s: time for pickling all variables; None for the environment's limit.
            max_mb: largest size of the file; in nsm's directory, of all saves. What is in the
                session may not be larger, either.

        Raises:
            SaveError: the session cannot be saved. No file is left.
            SaveInterruptedError: somebody interrupted it, for example by Ctrl-C.
            NsmError: there is no such session, or it has ended.
            OSError: the file cannot be written.
        """
        from nsm.saves.saving import Saving  # noqa: PLC0415  # `nsm restore` does without

        return done_again(
            lambda: Saving(self._client, target).save(path, timeout_s=timeout_s, max_mb=max_mb)
        )

    def restore(
        self,
        save: str,
        name: str | None = None,
        *,
        env: str = "",
        timeout_s: float | None = None,
        rerun: bool = False,
        max_mb: int | None = None,
    ) -> Restored:
        """Make a session of a save.

        The save may come from anywhere: nothing of it is unpacked or loaded outside of the new
        session.

        Args:
            save: a path, or the name of a save in nsm's directory.
            name: of the new session; None for that of the saved one.
            env: its environment; empty for that of the saved one, which has to be a preset if the
                save is not in nsm's directory.
            timeout_s: time for loading all variables, and for each piece of code that is run
                again; None for the environment's limit.
            rerun: make again what cannot be restored, by running the code that made it.
            max_mb: most that it may unpack to; None for 10 GiB, and for 1 GiB or 20 times its own
                size if it is not in nsm's directory.

        Raises:
            SaveError: it is no save, unpacks to more, or was changed; the session that was begun is
                gone.
            SaveInterruptedError: somebody interrupted it; likewise.
            NsmError: the session cannot be made, for example since there is one of that name.
        """
        from nsm.saves.restoring import restore  # noqa: PLC0415  # `nsm save` does without

        return restore(
            self._client, save, name, env=env, timeout_s=timeout_s, rerun=rerun, max_mb=max_mb
        )

    def transcript(self, target: str) -> SessionTranscript:
        """The transcript of a session, with that of the save that it was made of, for
        `nsm.Client.replay`.

        Raises:
            UnknownSessionError, AmbiguousSessionError: no session is meant, or several.
        """
        from nsm.saves.history import History  # noqa: PLC0415  # saves do without

        return History(self._client, target).transcript()
