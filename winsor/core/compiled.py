"""Small libraries in C, where they can be had: built with the wheel, or at first use.

Order: WINSOR_NOISE_KERNEL=0 says none; a library beside its source; a library in the cache folder;
one built now with the system's C compiler, put there by an atomic rename. Whoever asks checks that
the library does what the pure path does, bit by bit, before it is used: so that whether there is a
compiler changes the time that a run takes, and nothing else.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

FLAGS = ["-O3", "-ffp-contract=off", "-fno-fast-math", "-fPIC", "-shared"]

Library = TypeVar("Library")


def load(
    source: Path, opened: Callable[[Path], Library], agrees: Callable[[Library], bool]
) -> Library | None:
    """``opened(path)`` of the library made from ``source``, or None where none ``agrees``."""
    if os.environ.get("WINSOR_NOISE_KERNEL") == "0":
        return None
    for find in (_beside, _cached):
        try:
            path = find(source)
            if path is not None:
                library = opened(path)
                if agrees(library):
                    return library
        except (OSError, AttributeError, subprocess.SubprocessError):
            continue
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


def _beside(source: Path) -> Path | None:
    """Built with the wheel."""
    path = source.with_suffix(sysconfig.get_config_var("SHLIB_SUFFIX") or ".so")
    return path if path.exists() else None


def _cached(source: Path) -> Path | None:
    """Built before, or now. The name carries the source's digest: another version, another file."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    digest = hashlib.blake2b(source.read_bytes() + " ".join(FLAGS).encode(), digest_size=8)
    name = f"{source.stem.strip('_')}-{digest.hexdigest()}-{sys.platform}-{os.uname().machine}.so"
    path = _folder() / name
    if path.exists() and path.stat().st_uid == os.getuid():
        return path
    return build(compiler, source, path) if compiler else None


def _folder() -> Path:
    """A folder that only this user can write to: whoever writes there chooses our noise."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base) / "winsor"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise OSError(f"{folder} can be written to by others")
    return folder


def build(compiler: str, source: Path, path: Path) -> Path:
    """Compile beside the target, then rename: a reader never sees half a file."""
    handle, temporary = tempfile.mkstemp(suffix=".so", dir=path.parent)
    os.close(handle)
    try:
        command = [compiler, *FLAGS, "-o", temporary, str(source)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        os.chmod(temporary, 0o600)
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    return path
