"""A cached library is loaded only if nobody else can have put it there; a broken one is mended."""

from __future__ import annotations

import os
import threading

import pytest

from winsor.core import compiled
from winsor.core.noise import kernel


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of one's own with the library of the noise in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))
    if load() is None:
        pytest.skip("no compiler, or a processor without AES and AVX2")
    (library,) = (tmp_path / "home" / "cache" / "winsor").iterdir()
    return library


def load():
    return compiled.load(kernel.SOURCE, kernel.Kernel, kernel.agrees)


def opened(path):
    """Stands for a library: its bytes, as the loader would have them."""
    return path.read_bytes()


def loaded():
    return compiled.load(kernel.SOURCE, opened, lambda library: True)


@pytest.mark.parametrize("up", [0, 1, 2, 3])
def test_a_folder_that_others_can_change_is_not_used(cache, up):
    """Others could rename it, and put one of theirs in its place."""
    place = [cache, *cache.parents][up]
    mode = place.stat().st_mode & 0o777
    place.chmod(mode | 0o022)
    found = load()
    place.chmod(mode)
    if up:
        assert found is None
    else:  # the file itself is made anew
        assert found is not None and cache.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="files of others need root")
@pytest.mark.parametrize("up", [1, 2, 3])
def test_a_folder_of_another_user_is_not_used(cache, up):
    place = [cache, *cache.parents][up]
    os.chown(place, 65534, 65534)
    found = load()
    os.chown(place, 0, 0)
    assert found is None


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "pipe", "link", "other"])
def test_a_broken_library_is_compiled_again(cache, damage, tmp_path):
    whole = cache.read_bytes()
    if damage in ("pipe", "link"):
        cache.unlink()
        if damage == "pipe":
            os.mkfifo(cache)
        else:
            (tmp_path / "theirs").write_bytes(whole)
            cache.symlink_to(tmp_path / "theirs")
    else:
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        contents = {"cut": whole[:-100], "flip": flipped, "empty": b"", "other": b"code" * 99}
        cache.write_bytes(contents[damage])
    assert load() is not None
    assert cache.read_bytes() == whole and not cache.is_symlink()


def test_what_was_checked_is_what_is_loaded(cache, monkeypatch):
    """The file is exchanged for another between the check and the loading, and all the time."""
    whole, theirs = cache.read_bytes(), cache.parent.parent / "theirs"
    done = threading.Event()

    def checked_then_exchanged(path):
        content = real(path)
        cache.write_bytes(b"code of another user")
        return content

    real = compiled._content
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "_content", checked_then_exchanged)
        assert loaded() == whole[: -compiled.SIZE]

    def exchange():
        while not done.is_set():
            theirs.write_bytes(b"code of another user")
            theirs.chmod(0o600)
            os.replace(theirs, cache)
            theirs.write_bytes(whole)
            theirs.chmod(0o600)
            os.replace(theirs, cache)

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        monkeypatch.setattr(compiled, "build", lambda source, path: b"")
        found = {loaded() for _ in range(60)}
    finally:
        done.set()
        thread.join()
    assert found <= {whole[: -compiled.SIZE], b"", None}
