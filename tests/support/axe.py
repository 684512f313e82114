"""axe-core in Chromium: what a page does wrong towards people who hear it, or use no mouse.

Several pages share one browser. Each is loaded in a frame of its own, with the rules of axe-core
injected, so for this alone the pages' content security policy is taken out.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from pathlib import Path

import axe_core_python
import chromium

RULES = Path(axe_core_python.__file__).with_name("axe.min.js")
HARNESS = """<!doctype html><html lang="en"><head><title>axe</title></head><body>
<script type="application/json" id="pages">%s</script><script type="text/plain" id="axe">%s</script>
<script>
(async () => {
  const pages = JSON.parse(document.getElementById("pages").textContent);
  const rules = document.getElementById("axe").textContent;
  const found = {};
  for (const [name, text] of Object.entries(pages)) {
    const frame = document.createElement("iframe");
    frame.style.cssText = "width: %dpx; height: 900px; border: 0";
    const loaded = new Promise((done) => frame.addEventListener("load", done));
    frame.srcdoc = text;
    document.body.append(frame);
    await loaded;
    const script = frame.contentDocument.createElement("script");
    script.textContent = rules;
    frame.contentDocument.head.append(script);
    const result = await frame.contentWindow.axe.run(
      frame.contentDocument, {resultTypes: ["violations"]});  // of the rest one example each
    found[name] = {
      passes: result.passes.length,
      violations: result.violations.map((v) => v.id + ": " + v.nodes.map((n) => n.target.join(" ")
        + " " + n.any.concat(n.all).map((c) => c.message).join("; ")).join(" | ")),
    };
    frame.remove();
  }
  const answer = document.createElement("pre");
  answer.id = "answer";
  answer.textContent = JSON.stringify(found);
  document.body.append(answer);
})();
</script></body></html>
"""


def violations(
    pages: Mapping[str, str], folder: Path, theme: str = "light", width: int = 1280
) -> dict[str, list[str]]:
    """What axe-core finds wrong with each page, by name; pages without a fault are left out."""
    prepared = {name: _prepared(text, theme) for name, text in pages.items()}
    inert = json.dumps(prepared).replace("</", "<\\/").replace("<!--", "<\\u0021--")
    harness = folder / f"axe-{theme}-{width}.html"
    harness.write_text(
        HARNESS % (inert, RULES.read_text().replace("</script", "<\\/script"), width)
    )
    flags = ("--virtual-time-budget=600000", "--dump-dom")
    document, _ = chromium.run(harness, folder / f"profile-{theme}-{width}", *flags)
    answer = re.search(r'<pre id="answer">(.*?)</pre>', document, re.DOTALL)
    assert answer is not None, "axe-core did not finish"
    found = json.loads(html.unescape(answer.group(1)))
    assert found.keys() == pages.keys() and all(one["passes"] > 5 for one in found.values())
    return {name: one["violations"] for name, one in found.items() if one["violations"]}


def _prepared(text: str, theme: str) -> str:
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    return text.replace("<html ", f'<html data-theme="{theme}" ', 1)
