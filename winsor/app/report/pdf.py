"""A page as a PDF, printed by the Chromium that is installed: to be filed, or signed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from winsor.core.contract import WinsorError

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "msedge")
PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
QUIET = (
    "--headless",
    # The page is ours, and its policy runs no script but ours. Containers often have no sandbox.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--no-first-run",
)
PATIENCE = 120.0


class NoBrowser(WinsorError, RuntimeError):
    """There is no Chromium to print with, or it did not print."""


def find_browser() -> str | None:
    """WINSOR_CHROMIUM if it is set, else one on the PATH or where it is usually installed."""
    for name in (os.environ.get("WINSOR_CHROMIUM"), *NAMES, *PLACES):
        found = shutil.which(name) if name else None
        if found:
            return found
    return None


def print_to_pdf(page: Path, pdf: Path) -> None:
    """Print ``page`` as A4."""
    browser = find_browser()
    if browser is None:
        raise NoBrowser(
            "--pdf needs a Chromium or Chrome to print with. None was found. Install one "
            "(Debian, Ubuntu: apt-get install chromium; macOS: brew install --cask chromium), or "
            f"set WINSOR_CHROMIUM to its path. {page} is written: any browser can print it."
        )
    with tempfile.TemporaryDirectory(prefix="winsor-") as folder:
        made = Path(folder) / "page.pdf"
        flags = [f"--user-data-dir={folder}/profile", f"--print-to-pdf={made}"]
        words = [browser, *QUIET, *flags, "--no-pdf-header-footer", page.resolve().as_uri()]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoBrowser(_failed(browser, str(error), page)) from error
        if done.returncode or not made.exists():
            raise NoBrowser(_failed(browser, done.stderr.strip()[-500:], page))
        shutil.copyfile(made, pdf)


def _failed(browser: str, why: str, page: Path) -> str:
    return (
        f"--pdf must be printed by {browser}. It printed nothing: {why or 'no message'}. Set "
        f"WINSOR_CHROMIUM to another browser, or print {page} by hand."
    )
