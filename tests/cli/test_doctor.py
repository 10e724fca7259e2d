"""``fineflow doctor``: what it says of packages that fit, are missing, or have versions that cannot work."""

from __future__ import annotations

import json
import subprocess
import sys
from email.message import Message
from importlib import metadata
from typing import Any

import pytest

from fineflow import cli, installation
from fineflow.errors import installing
from fineflow.installation import diagnose, in_range

REQUIRES = [
    "wrapt>=2.0",
    "langchain-core<2,>=1.7; extra == 'langchain'",
    'transformers<5.24,>=5.23; extra == "transformers"',
    "torch>=2.6; extra == 'transformers'",
    "psycopg[binary]>=3.2; extra == 'postgres'",
    "pytest; extra == 'dev'",
]


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The packages that are installed, by name."""
    installed = {"wrapt": "2.1", "langchain-core": "1.7.2", "transformers": "5.23.1", "torch": "2.13.0+cpu"}
    about = Message()
    for extra in ("langchain", "transformers", "postgres", "dev"):
        about["Provides-Extra"] = extra

    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "metadata", lambda name: about)
    monkeypatch.setattr(metadata, "requires", lambda name: REQUIRES)
    monkeypatch.setattr(metadata, "version", version)
    for name in installation.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return installed


def _said(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """Its status, and what it prints."""
    status = cli.main(["doctor", *args])
    return status, capsys.readouterr().out


def test_all_is_well(packages: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    status, said = _said(capsys)
    assert status == 0
    lines = [line.split() for line in said.splitlines()]
    assert ["ok", "TransformersEngine"] in lines
    assert ["-", "VLLMEngine", *installing("vllm").split()] in lines
    assert said.startswith("Nothing that is installed is known not to work.")
    assert "can be optimized: langchain. Of 3 extras 2 are installed" in " ".join(said.split())
    assert "psycopg" not in said


def test_all_extras_are_listed_on_request(
    packages: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(installation, "_IMPORTED", ())
    status, said = _said(capsys, "--all")
    assert status == 0
    lines = [line.split() for line in said.splitlines()]
    assert ["ok", "langchain", "langchain-core", "1.7.2"] in lines
    assert ["-", "postgres", "missing:", "psycopg", *installing("postgres").split()] in lines
    assert "dev" not in said.split()


def test_a_version_out_of_range_is_a_fault(
    packages: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    packages["transformers"] = "5.24.0"
    status, said = _said(capsys)
    assert status == 1
    flat = " ".join(said.split())
    wrong = "WRONG: transformers 5.24.0 is installed; supported: <5.24,>=5.23. Run: pip install 'transformers<5.24"
    assert flat.startswith(wrong)
    assert f"- TransformersEngine {installing('transformers')}" in flat
    monkeypatch.setattr(installation, "_IMPORTED", ())
    flat = " ".join(_said(capsys, "--all")[1].split())
    assert "WRONG transformers torch 2.13.0+cpu, transformers 5.24.0 (supported: <5.24,>=5.23)" in flat


def test_a_part_of_an_extra_is_missing(
    packages: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    del packages["torch"]
    monkeypatch.setattr(installation, "_IMPORTED", ())
    status, said = _said(capsys, "--all")
    assert status == 0  # nothing that is installed is wrong
    flat = " ".join(said.split())
    assert f"- transformers transformers 5.23.1 missing: torch {installing('transformers')}" in flat


def test_as_json(packages: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FINEFLOW_DISABLE", "1")
    packages["langchain-core"] = "2.0"
    status, said = _said(capsys, "--json")
    found: dict[str, Any] = json.loads(said)
    assert status == 1
    assert found["environment"] == {"FINEFLOW_DISABLE": "1"}
    [extra] = [each for each in found["extras"] if each["name"] == "langchain"]
    assert (extra["state"], extra["install"]) == ("wrong", installing("langchain"))
    assert found["engines"]["TransformersEngine"] == "ok"
    assert len(found["faults"]) == 1


def test_not_installed_as_a_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def none(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "metadata", none)
    status, said = _said(capsys)
    assert status == 0
    assert "not installed as a package" in said


@pytest.mark.parametrize(
    ("version", "supported", "fits"),
    [
        ("1.7", ">=1.7,<2", True),
        ("1.7.0", ">=1.7,<=1.7", True),
        ("2", ">=1.7,<2", False),
        ("1.10.1", ">=1.9", True),
        ("1.6.9", "<2,>=1.7", False),
        ("2.13.0+cpu", ">=2.6", True),
        ("5.23.0rc1", ">=5.23,<5.24", True),
        ("3.0", "!=3.0", False),
        ("0.1", "", True),
    ],
)
def test_ranges(version: str, supported: str, fits: bool) -> None:
    assert in_range(version, supported) is fits


def test_a_library_that_cannot_be_imported_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_IMPORTED", ("langchain-core",))
    monkeypatch.setitem(sys.modules, "langchain_core", None)
    assert any("langchain-core" in fault and "cannot be imported" in fault for fault in diagnose(thorough=True).faults)
    assert not any("cannot be imported" in fault for fault in diagnose().faults)


@pytest.mark.parametrize(
    ("told", "command"),
    [
        ('{"url": "file:///srv/fineflow", "dir_info": {"editable": true}}', "pip install -e '/srv/fineflow[vllm]'"),
        ('{"url": "file:///srv/fineflow", "dir_info": {}}', "pip install '/srv/fineflow[vllm]'"),
        ('{"url": "file:///a%20b/fineflow-1.whl", "archive_info": {}}', "pip install '/a b/fineflow-1.whl[vllm]'"),
        (
            '{"url": "https://x/y.git", "vcs_info": {"vcs": "git"}}',
            "pip install 'fineflow[vllm] @ git+https://x/y.git'",
        ),
        (None, "pip install 'fineflow[vllm]'"),  # from an index
    ],
)
def test_extras_are_installed_from_where_fineflow_came_from(
    monkeypatch: pytest.MonkeyPatch, told: str | None, command: str
) -> None:
    class Installed:
        def read_text(self, name: str) -> str | None:
            return told if name == "direct_url.json" else None

    monkeypatch.setattr(metadata, "distribution", lambda name: Installed())
    assert installing("vllm") == command


def test_a_folder_on_the_path_names_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", none)
    assert installing("vllm") == "pip install -e '.[vllm]' in a checkout of fineflow"


def test_nothing_large_is_imported() -> None:
    code = (
        "import sys; from fineflow import cli; cli.main(['doctor']); "
        "print({'torch', 'transformers', 'langchain_core', 'llama_index', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip().endswith("set()"), done.stdout + done.stderr
