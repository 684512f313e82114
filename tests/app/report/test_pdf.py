"""A PDF through the Chromium that is there, and a clear word where there is none."""

from __future__ import annotations

import re

import chromium
import pytest
import tomli_w
from tiny_runs import table

from winsor.app.commands.main import main
from winsor.app.report.pdf import NoBrowser, find_browser, print_to_pdf


def test_the_command_prints_a_page_to_file(tmp_path, capsys):
    chromium.executable()
    run, config = tmp_path / "run", tmp_path / "tiny.toml"
    config.write_text(tomli_w.dumps(table()))
    with pytest.raises(SystemExit):
        main(["train", str(config), "--run", str(run), "--quiet"])
    with pytest.raises(SystemExit) as end:
        main(["report", str(run), "--pdf"])
    assert end.value.code == 0, capsys.readouterr().err
    content = (run / "report.pdf").read_bytes()
    assert content.startswith(b"%PDF") and len(content) > 20_000
    assert int(re.search(rb"/Type /Pages.*?/Count (\d+)", content, re.DOTALL).group(1)) in (3, 4, 5)
    assert "report.pdf" in capsys.readouterr().out


def test_without_a_browser_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("WINSOR_CHROMIUM", raising=False)
    monkeypatch.setattr("winsor.app.report.pdf.PLACES", ())
    assert find_browser() is None
    with pytest.raises(NoBrowser, match=r"apt-get install chromium.*WINSOR_CHROMIUM"):
        print_to_pdf(tmp_path / "report.html", tmp_path / "report.pdf")


def test_a_browser_that_prints_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("WINSOR_CHROMIUM", "false")
    with pytest.raises(NoBrowser, match="It printed nothing"):
        print_to_pdf(tmp_path / "report.html", tmp_path / "report.pdf")
    assert not (tmp_path / "report.pdf").exists()
