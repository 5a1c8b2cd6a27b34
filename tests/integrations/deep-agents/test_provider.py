"""Provider of Deep Agents Code, against a copy of the interface that it needs Python 3.12 for."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor


@dataclass(frozen=True)
class SandboxProviderMetadata:
    """Copy of the class in deepagents-code 0.1.88."""

    name: str
    working_dir: str
    install: object = None
    supports_sandbox_id: bool = True
    supports_snapshot_name: bool = False
    backend_module: str | None = None


class SandboxNotFoundError(Exception):
    """Copy of the class in deepagents-code 0.1.88."""


class SandboxProvider(ABC):
    """Copy of the class in deepagents-code 0.1.88."""

    @abstractmethod
    def get_or_create(self, *, sandbox_id: str | None = None, **kwargs: Any) -> Any:
        """Get one, or create one."""

    @abstractmethod
    def delete(self, *, sandbox_id: str, **kwargs: Any) -> None:
        """Delete one."""


@pytest.fixture
def provider(shared: Supervisor, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    name = "deepagents_code.integrations.sandbox_provider"
    module = ModuleType(name)
    for each in (SandboxProviderMetadata, SandboxNotFoundError, SandboxProvider):
        setattr(module, each.__name__, each)
    for package in ("deepagents_code", "deepagents_code.integrations"):
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.setitem(sys.modules, name, module)
    from nsm.integrations.deepagents_code import NsmProvider

    yield NsmProvider()
    sys.modules.pop("nsm.integrations.deepagents_code")


def test_sandboxes_are_made_found_and_deleted(provider: Any) -> None:
    first = provider.get_or_create()
    first.execute("echo a >f")
    second = provider.get_or_create(sandbox_id=first.id)
    assert second.execute("cat f").output == "a\n"
    provider.delete(sandbox_id=first.id)
    provider.delete(sandbox_id=first.id)
    with pytest.raises(SandboxNotFoundError):
        provider.get_or_create(sandbox_id=first.id)


def test_settings_and_metadata(provider: Any) -> None:
    backend = provider.get_or_create(memory_mb=256)
    assert backend.execute("pwd").output == provider.metadata.working_dir + "\n"
    backend.close()
    with pytest.raises(TypeError):
        provider.get_or_create(no_such_setting=1)
