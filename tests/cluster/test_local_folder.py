"""The folder by which processes of one user find their instance of Ray."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fineflow.errors import BackendError
from fineflow.runtime.cluster import local


def test_it_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINEFLOW_CLUSTER_DIR", str(tmp_path / "own"))
    assert local.folder().stat().st_mode & 0o777 == 0o700
    local.folder().chmod(0o777)
    with pytest.raises(BackendError, match="others may write to it"):
        local.join()


def test_one_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who makes it first could name the address of a Ray of theirs."""
    monkeypatch.setenv("FINEFLOW_CLUSTER_DIR", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(BackendError, match="belongs to another user"):
        local.folder()
