"""`./dev release`: each reason against a release is found, and so are faults inside a package."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import zipfile
from datetime import date
from pathlib import Path

import pytest

from release import build, checks, contents, installs
from release.__main__ import STEPS, main
from release.project import ReleaseError, minor_versions, run

ROOT = Path(__file__).resolve().parents[2]
TODAY = date.today().isoformat()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository that could be released: version 1.2.3, committed, every box ticked, no placeholder."""
    for name in (*checks.PLACEHOLDERS, "CHANGELOG.md", "RELEASE.md", ".github/ISSUE_TEMPLATE/config.yml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / name).read_text().replace("example.org", "example.net").replace("- [ ]", "- [x]")
        (tmp_path / name).write_text(text)
    version = checks.pyproject()["project"]["version"]
    edit(tmp_path / "pyproject.toml", f'version = "{version}"', 'version = "1.2.3"')
    edit(tmp_path / "CITATION.cff", f"version: {version}\n", f"version: 1.2.3\ndate-released: {TODAY}\n")
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## 1.2.3 ({TODAY})\n\n- A change.\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "all")
    return tmp_path


def git(folder: Path, *words: str) -> None:
    author = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *author, *words], cwd=folder, check=True)


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def test_a_clone_that_is_ready(clone: Path) -> None:
    assert checks.problems_of("1.2.3", clone) == []


@pytest.mark.parametrize(
    ("file", "before", "after", "problem"),
    [
        ("pyproject.toml", 'version = "1.2.3"', 'version = "1.2.2"', r"pyproject.toml: version is '1.2.2', not '1.2.3'"),
        ("CITATION.cff", "version: 1.2.3", "version: 1.2.2", "CITATION.cff: version is '1.2.2'"),
        ("CITATION.cff", TODAY, "2020-01-01", "CITATION.cff: date-released is '2020-01-01'"),
        ("CHANGELOG.md", f"({TODAY})", "(unreleased)", f"CHANGELOG.md: the top section is '## 1.2.3 (unreleased)'; write '## 1.2.3 ({TODAY})'"),
        ("CHANGELOG.md", "- A change.", "Nothing.", "lists no change"),
        ("RELEASE.md", "- [x] A home for", "- [ ] A home for", "RELEASE.md: not done yet: A home for the documentation site"),
        ("mkdocs.yml", "example.net", "example.org", "example.org stands in mkdocs.yml"),
        (".github/ISSUE_TEMPLATE/config.yml", "example.net", "example.org", "example.org stands in .github"),
    ],
)  # fmt: skip
def test_a_reason_against_a_release(clone: Path, file: str, before: str, after: str, problem: str) -> None:
    edit(clone / file, before, after)
    git(clone, "commit", "--quiet", "--all", "--message", "changed")
    (found,) = checks.problems_of("1.2.3", clone)
    assert problem in found


def test_uncommitted_files_and_a_tag_of_another_commit(clone: Path) -> None:
    git(clone, "tag", "v1.2.3")
    assert checks.problems_of("1.2.3", clone) == []
    (clone / "new.txt").write_text("x")
    (found,) = checks.problems_of("1.2.3", clone)
    assert "1 uncommitted changes (?? new.txt" in found
    git(clone, "add", ".")
    git(clone, "commit", "--quiet", "--message", "more")
    (found,) = checks.problems_of("1.2.3", clone)
    assert "the tag v1.2.3 exists and names another commit" in found


def test_a_version_of_another_form(clone: Path) -> None:
    assert any("allowed: major.minor.patch" in text for text in checks.problems_of("1.2", clone))


def test_this_tree_is_refused_and_may_be_rehearsed(capsys: pytest.CaptureFixture[str]) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone: a source distribution cannot be released")
    assert main(["9.9.9"]) == 1
    assert "pyproject.toml: version is '" in capsys.readouterr().err
    assert main(["9.9.9", "--only", "checks"]) == 0
    found = capsys.readouterr()
    assert "a release would be refused: pyproject.toml: version is '" in found.err
    assert "A rehearsal ends here" in found.out


def test_the_steps_of_the_page_are_those_of_the_program() -> None:
    text = (ROOT / "RELEASE.md").read_text()
    table = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert [name.strip(" `") for cell in table for name in cell.split(",")] == list(STEPS)
    steps = checks.steps_for_a_person(text, "1.2.3")
    assert "git tag -s v1.2.3" in steps
    assert "VERSION" not in steps


# ---- contents ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"x" + str(ROOT / "host" / "a.cpp").encode(), "holds a path of this machine"),
        (b"-----BEGIN OPENSSH " + b"PRIVATE KEY-----", "holds a private key"),
        (b"ghp_" + b"a1" * 18, "holds a token of GitHub"),
        (b"https://me:" + b"hunter2@host.net/x", "holds a password in an address"),
    ],
)
def test_what_must_not_be_inside(data: bytes, problem: str) -> None:
    (found,) = contents.leaks(b"before\n" + data + b"\nafter")
    assert problem in found
    assert list(contents.leaks(b"https://user:password@host, /usr/lib/python3")) == []


def package(folder: Path, files: dict[str, str]) -> Path:
    path = folder / "sparsesnn-1.2.3-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return path


def good_files() -> dict[str, str]:
    project = checks.pyproject()["project"]
    lines = [
        "Metadata-Version: 2.4",
        "Name: sparsesnn",
        "Version: 1.2.3",
        f"Summary: {project['description']}",
        f"License-Expression: {project['license']}",
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {text}" for text in project["dependencies"]),
    ]
    info = "sparsesnn-1.2.3.dist-info"
    return {
        "sparsesnn/_core.cpython-311.so": "",
        f"{info}/METADATA": "\n".join(lines) + "\n\n",
        f"{info}/licenses/LICENSE": "",
    }


def test_a_good_wheel(tmp_path: Path) -> None:
    assert list(contents.problems_of(package(tmp_path, good_files()), "1.2.3")) == []


@pytest.mark.parametrize(
    ("add", "remove", "problem"),
    [
        ({"tests/test_a.py": ""}, "", "tests/test_a.py lies outside the package"),
        ({}, "_core", "the compiled engine (sparsesnn/_core*.so) is missing"),
        ({}, "LICENSE", "LICENSE is missing"),
        ({}, "METADATA", "0 files of metadata"),
        ({"sparsesnn/a.py": f"'{ROOT}/a'"}, "", "sparsesnn/a.py: holds a path of this machine"),
    ],
)
def test_a_bad_wheel(tmp_path: Path, add: dict[str, str], remove: str, problem: str) -> None:
    files = {name: text for name, text in good_files().items() if not remove or remove not in name}
    (found,) = contents.problems_of(package(tmp_path, files | add), "1.2.3")
    assert problem in found


def test_other_metadata(tmp_path: Path) -> None:
    (found,) = contents.problems_of(package(tmp_path, good_files()), "1.2.4")
    assert found.endswith("Version is '1.2.3', not '1.2.4'")


def test_compiled_files_in_a_source_distribution(tmp_path: Path) -> None:
    path = tmp_path / "sparsesnn-1.2.3.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        text = good_files()["sparsesnn-1.2.3.dist-info/METADATA"]
        for name, content in {"PKG-INFO": text, "LICENSE": "", "sparsesnn/a.so": ""}.items():
            member = tarfile.TarInfo(f"sparsesnn-1.2.3/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
    (found,) = contents.problems_of(path, "1.2.3")
    assert "compiled files, such as sparsesnn/a.so" in found


# ---- building and installing -----------------------------------------------------------------------------------------


def test_pythons_with_a_wheel() -> None:
    assert minor_versions(tried=False) == ["3.10", "3.11", "3.12"]
    assert minor_versions(tried=True) == ["3.10", "3.11", "3.12", "3.13"]


def test_the_wheel_of_a_python(tmp_path: Path) -> None:
    names = ("cp310-cp310", "cp312-abi3")
    for name in names:
        (tmp_path / f"sparsesnn-1.2.3-{name}-linux_x86_64.whl").touch()
    found = {version: installs.wheel_for(version, tmp_path) for version in minor_versions(tried=True)}
    assert found["3.11"] is None
    assert {version: path.name.split("-linux")[0][-10:].strip("-") for version, path in found.items() if path} == {
        "3.10": "p310-cp310",
        "3.12": "cp312-abi3",
        "3.13": "cp312-abi3",
    }


def test_other_weights_under_another_python() -> None:
    same = {"weights": "a", "torch": "2.9"}
    installs.side_by_side({"3.10": same, "3.11": same, "3.12": {"weights": "b", "torch": "2.8"}})
    with pytest.raises(ReleaseError, match=r"PyTorch 2\.9 gave other weights"):
        installs.side_by_side({"3.10": same, "3.11": {"weights": "b", "torch": "2.9"}})


def test_the_older_wheel_can_be_installed(tmp_path: Path) -> None:
    wheel = installs.older_wheel(tmp_path)
    pip = shutil.which("pip3") or shutil.which("pip")
    assert pip, "the test needs pip"
    run(pip, "install", "--quiet", "--no-deps", "--no-index", "--target", tmp_path / "site", wheel)
    assert (tmp_path / "site" / "sparsesnn" / "removed.py").exists()


def test_a_compiler_in_a_bare_environment_is_noticed(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    assert installs.bare(python)["PATH"] == str(python.parent)
    python.with_name("gcc").write_text("#!/bin/sh\n")
    python.with_name("gcc").chmod(0o755)
    with pytest.raises(ReleaseError, match=r"holds a compiler \(gcc\)"):
        installs.bare(python)


def test_other_bytes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import argparse

    options = argparse.Namespace(dist=tmp_path / "dist")
    with pytest.raises(ReleaseError, match="take the step build first"):
        build.run_again(options)
    options.dist.mkdir()
    (options.dist / "COMMIT").write_text("abc\n")
    (options.dist / "sparsesnn-1.tar.gz").write_text("a")

    def build_other(_: argparse.Namespace, commit: str, dist: Path, work: Path) -> None:
        assert commit == "abc"
        dist.mkdir(parents=True)
        (dist / "sparsesnn-1.tar.gz").write_text("b")

    monkeypatch.setattr(build, "WORK", tmp_path / "work")
    monkeypatch.setattr(build, "build_all", build_other)
    with pytest.raises(ReleaseError, match=r"built twice, these differ: sparsesnn-1\.tar\.gz"):
        build.run_again(options)
