"""Another release of leasedkeyq, for processes beside those of this one.

It is the sdist that ``--sdist`` names, or the newest of build/releases. As long as there is none,
it is a copy of this very package under another version: two installed copies all the same.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import leasedkeyq

ROOT: Final = Path(__file__).resolve().parents[3]
RELEASES: Final = ROOT / "build" / "releases"
SDIST: Final = "LEASEDKEYQ_SDIST"
"""The variable with the path of an sdist; `python -m tests.torture --sdist` sets it."""
FIRST: Final = "0.1.0"
"""The first release of this implementation. Older ones had no stores."""
COPY_VERSION: Final = "0.0.99+copy"


@dataclass(frozen=True)
class Release:
    """A copy of the package that a process can use instead of the installed one."""

    version: str
    paths: tuple[Path, ...]
    """In front of everything else on the path of modules."""
    root: Path
    """Where its tests are: the folder in which its programs run."""

    def environment(self) -> dict[str, str]:
        """Of a process that uses it."""
        return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, self.paths))}

    def check(self) -> None:
        """See that a process really gets this copy."""
        code = "import leasedkeyq; print(leasedkeyq.__version__, leasedkeyq.__file__)"
        said = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.root,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        version, _, file = said.strip().partition(" ")
        assert version == self.version, said
        assert Path(file).is_relative_to(self.paths[0]), said


def last_sdist() -> Path | None:
    """The sdist to be used, if there is one."""
    if os.environ.get(SDIST):
        return Path(os.environ[SDIST]).resolve()
    found = sorted(RELEASES.glob("leasedkeyq-*.tar.gz"), key=_version_of)
    return found[-1] if found else None


def _version_of(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", path.name))


def download() -> Path | None:
    """Bring the sdist of the last release here from the index, if there is one."""
    RELEASES.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"),
        *("--dest", str(RELEASES), f"leasedkeyq>={FIRST}"),
    ]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    if ended.returncode and "No matching distribution" not in ended.stderr:
        raise RuntimeError(ended.stderr)
    return last_sdist()


def other_release(folder: Path) -> Release:
    """The other release, unpacked in the folder, which is empty."""
    sdist = last_sdist()
    return _copy(folder) if sdist is None else _unpacked(sdist, folder)


def _unpacked(sdist: Path, folder: Path) -> Release:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    [root] = folder.iterdir()
    version = root.name.removeprefix("leasedkeyq-")
    _mark(root / "src", version)
    # It has the tests of its own time, whose workers know what is inside of its package.
    return Release(version, (root / "src", root), root)


def _copy(folder: Path) -> Release:
    package = Path(leasedkeyq.__file__).parent
    shutil.copytree(package, folder / "leasedkeyq")
    _mark(folder, COPY_VERSION)
    return Release(COPY_VERSION, (folder, ROOT), ROOT)


def _mark(folder: Path, version: str) -> None:
    """Tell Python which version of the package is in the folder, as an installer would."""
    info = folder / f"leasedkeyq-{version}.dist-info"
    info.mkdir()
    told = f"Metadata-Version: 2.1\nName: leasedkeyq\nVersion: {version}\n"
    (info / "METADATA").write_text(told, encoding="utf-8")
