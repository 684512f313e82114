"""A headless Chromium, with what the page wrote to its console."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from winsor.app.report.pdf import find_browser

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--v=0",
)


def executable() -> str:
    found = find_browser()
    if found is not None:
        return found
    pytest.fail("no Chromium: run .ci/browser, which says how to have one, or set WINSOR_CHROMIUM")


PATIENCE = 600.0
"""Seconds after which a browser hangs, on however busy a machine."""


def run(page: Path, profile: Path, *flags: str) -> tuple[str, list[str]]:
    """Open a page; return the standard output, and the lines of its console."""
    done = subprocess.run(
        [executable(), *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def dom(page: Path, profile: Path) -> tuple[str, list[str]]:
    """The document after its scripts have run, and the console."""
    return run(page, profile, "--virtual-time-budget=3000", "--dump-dom")


def screenshot(page: Path, profile: Path, image: Path, *flags: str) -> list[str]:
    image.parent.mkdir(parents=True, exist_ok=True)
    _, console = run(page, profile, f"--screenshot={image}", *flags)
    return console
