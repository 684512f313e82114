"""Small libraries in C, where they can be had: compiled at first use, and kept in a cache folder.

What is there runs as this user, so nobody else may be able to write there. A file is read once, its
digest is checked and these very bytes are loaded; a broken one is compiled again. Whoever asks
checks that the library does what the pure path does, bit by bit, before it is used: so that whether
there is a compiler changes the time that a run takes, and nothing else (WINSOR_NOISE_KERNEL=0: no).
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from winsor.core.ledger.chain import content_of

FLAGS = ["-O3", "-ffp-contract=off", "-fno-fast-math", "-fPIC", "-shared"]
SIZE = 32  # bytes of the digest at the end of a cached library

Library = TypeVar("Library")


def load(
    source: Path, opened: Callable[[Path], Library], agrees: Callable[[Library], bool]
) -> Library | None:
    """``opened(path)`` of the library made from ``source``, or None where none ``agrees``."""
    if os.environ.get("WINSOR_NOISE_KERNEL") == "0":
        return None
    try:
        handle = os.memfd_create("winsor")  # it has no name, hence no other content; and it stays
        os.write(handle, _content(source))  # open, as the loader knows libraries by their path
        library = opened(Path(f"/proc/self/fd/{handle}"))
        return library if agrees(library) else None
    except (OSError, AttributeError, subprocess.SubprocessError):
        return None


def functions(
    library: ctypes.CDLL, needs: str = "AVX2", **signatures: tuple[Any, ...]
) -> list[Callable[..., Any]]:
    """Declare functions ``winsor_NAME`` of an open library and return them, in the given order.

    A signature is (result, *arguments) in ctypes. OSError where the processor lacks ``needs``.
    """
    library.winsor_supported.restype = ctypes.c_int
    if not library.winsor_supported():
        raise OSError(f"the processor has no {needs} instructions")
    found = []
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, f"winsor_{name}")
        function.restype, function.argtypes = result, arguments
        found.append(function)
    return found


def _content(source: Path) -> bytes:
    """Built before, or now. The name carries the source's digest: another version, another file."""
    digest = hashlib.blake2b(source.read_bytes() + " ".join(FLAGS).encode(), digest_size=8)
    name = f"{source.stem.strip('_')}-{digest.hexdigest()}-{sys.platform}-{os.uname().machine}.so"
    path = _folder() / name
    return _intact(path) or build(source, path)


def _intact(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        content = content_of(path, owner_only=True)
        if hashlib.blake2b(content[:-SIZE], digest_size=SIZE).digest() == content[-SIZE:]:
            return content[:-SIZE]
    return b""


def _folder() -> Path:
    """A folder that others can neither write to nor rename: whoever can chooses our noise."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base).resolve() / "winsor"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for place in (folder, *folder.parents):
        state = place.lstat()  # where others may write above it, only owners rename (sticky bit)
        others = state.st_mode & 0o022 and (place == folder or not state.st_mode & 0o1000)
        if others or not place.is_dir() or state.st_uid not in (0, os.getuid()):
            raise OSError(f"{place} can be changed by others")
    return folder


def build(source: Path, path: Path) -> bytes:
    """Compile beside the target, then rename: a reader never sees half a file."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or "cc"
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / "made"
        command = [compiler, *FLAGS, "-o", str(made), str(source)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        content = made.read_bytes()
        made.write_bytes(content + hashlib.blake2b(content, digest_size=SIZE).digest())
        made.chmod(0o600)
        made.replace(path)
    return content
