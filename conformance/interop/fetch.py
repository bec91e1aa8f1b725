#!/usr/bin/env python3
"""Fetches what `vllm_peer.py` runs on into a folder: vLLM's NixlConnector source, and a Python with NIXL.

    fetch.py DIR

DIR/venv gets the packages of requirements.txt, DIR/vllm-0.33.0 the few files of vLLM's source distribution that the interop
peer loads. Both are put in place only when they are whole, so a second run does nothing and a broken one is mended. None of
vLLM's source belongs into this repository.
"""

import hashlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from stubs import REAL, source_file

VERSION = "0.33.0"
SDIST = f"vllm-{VERSION}.tar.gz"
SDIST_SHA256 = "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
MARK = "complete"


class FetchError(Exception):
    """What is missing, and what to do."""


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    if sys.version_info < (3, 11):
        print("fetch.py: Python 3.11 or newer is needed (vLLM's own bound): run it with another python3", file=sys.stderr)
        return 1
    home = Path(sys.argv[1]).absolute()
    packages, modules = digest(REQUIREMENTS.read_bytes()), digest("\n".join(sorted(REAL)).encode())
    steps = [
        (home / "venv", venv, packages, starts, "NIXL and seven small packages: 80 MB to download, 350 MB on disk"),
        (home / f"vllm-{VERSION}", source, modules, has_sources, "vLLM's source distribution: 47 MB to download, 1 MB kept"),
    ]
    todo = []
    for folder, make, mark, works, what in steps:
        complete = is_complete(folder, mark) and works(folder)
        print(f"{'complete' if complete else 'to do'}: {folder}: {what}", flush=True)
        if not complete:
            todo.append((folder, make, mark))
    try:
        home.mkdir(parents=True, exist_ok=True)
        for folder, make, mark in todo:
            if folder.exists():
                print(f"removing an incomplete or older {folder}", flush=True)
                shutil.rmtree(folder)
            make(folder)
            (folder / MARK).write_text(mark)
    except (FetchError, OSError, http.client.HTTPException) as error:
        print(f"fetch.py: {error}", file=sys.stderr)
        return 1
    print(f"ready: vllm_peer.py --home {home} ...")
    return 0


def is_complete(folder: Path, mark: str) -> bool:
    try:
        return (folder / MARK).read_text() == mark
    except OSError:
        return False


def starts(folder: Path) -> bool:
    """Whether the Python of a virtual environment still runs: the one that it was made of may be gone."""
    command = [str(folder / "bin" / "python"), "-c", "pass"]
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def has_sources(folder: Path) -> bool:
    return all((folder / source_file(module)).is_file() for module in REAL)


def venv(folder: Path):
    """A virtual environment can't be moved, so it is made in place; the mark says that it is whole."""
    python = folder / "bin" / "python"
    run([sys.executable, "-m", "venv", str(folder)], "python3 has no working venv module: install it (Debian: python3-venv)")
    run(
        [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "-r", str(REQUIREMENTS)],
        "pip could not install requirements.txt: is the package index reachable? (PIP_INDEX_URL names another one)",
    )
    run(
        [str(python), "-c", "import nixl._api, numpy, msgspec, zmq, regex, urllib3, psutil, packaging"],
        "the packages do not load",
    )


def run(command: list[str], advice: str):
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        raise FetchError(f"{advice}\n  {' '.join(command)} said:\n{result.stdout[-2000:]}")


def source(folder: Path):
    """The modules that `stubs.py` loads, out of the checked archive."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        archive, part = Path(scratch, SDIST), Path(scratch, "source")
        download(sdist_url(), archive)
        with tarfile.open(archive) as tar:
            for name in sorted(source_file(module) for module in REAL):
                member = tar.extractfile(f"vllm-{VERSION}/{name}")
                path = part / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(member.read())
        part.rename(folder)


def sdist_url() -> str:
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
    request = urllib.request.Request(f"{index}/vllm/", headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with fetch(request) as answer:
        try:
            files = json.load(answer)["files"]
        except (ValueError, KeyError) as error:
            raise FetchError(f"{index} gives no JSON index (PEP 691): set PIP_INDEX_URL to one that does") from error
    for file in files:
        if file["filename"] == SDIST:
            return urllib.parse.urljoin(f"{index}/vllm/", file["url"])
    raise FetchError(f"{index} has no {SDIST}")


def download(url: str, to: Path):
    print(f"downloading {url}", flush=True)
    sha = hashlib.sha256()
    with fetch(urllib.request.Request(url)) as answer, to.open("wb") as file:
        while piece := answer.read(1 << 20):
            sha.update(piece)
            file.write(piece)
    if sha.hexdigest() != SDIST_SHA256:
        raise FetchError(f"{url} is not the {SDIST} that was pinned: sha256 {sha.hexdigest()}, expected {SDIST_SHA256}")


def fetch(request: urllib.request.Request):
    try:
        return urllib.request.urlopen(request, timeout=60)
    except urllib.error.URLError as error:
        raise FetchError(
            f"{request.full_url} can't be reached ({error.reason}): a network is needed, or PIP_INDEX_URL"
        ) from error


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
