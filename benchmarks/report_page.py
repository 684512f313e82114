"""Size of the report of a run with 20,000 steps, and how long a browser takes to open it.

    python benchmarks/report_page.py

A run of 20,000 steps, every step recorded, without and with a monitor (norm quantiles and more).
Opening is measured in headless Chromium by the page itself: from navigation to the end of the load
event, when charts are drawn and alive; median of five fresh profiles.
"""

from __future__ import annotations

import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

from saving import save

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))

import chromium  # noqa: E402
from finished_runs import make_run  # noqa: E402

from winsor.app.report.collect import collect  # noqa: E402
from winsor.app.report.page import render  # noqa: E402

PROBE = (
    "<script>addEventListener('load', () => setTimeout(() => {"
    "document.body.dataset.ms = Math.round(performance.timing.loadEventEnd"
    " - performance.timing.navigationStart);}))</script></body>"
)


def opening(page: str, folder: Path, repeats: int = 5) -> float:
    """Milliseconds. The probe is our own script, so the page's policy is taken out for it."""
    path = folder / "page.html"
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    path.write_text(page.replace("</body>", PROBE))
    found = []
    for k in range(repeats):
        document, _ = chromium.run(path, folder / f"profile-{k}", "--timeout=5000", "--dump-dom")
        found.append(float(re.search(r'<body[^>]* data-ms="(\d+)"', document).group(1)))  # type: ignore[union-attr]
    return statistics.median(found)


def main() -> None:
    results = {}
    for name in ("off", "debug"):
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            run = make_run(folder / "run", steps=20_000, monitor=name, rate=0.002)
            begun = time.perf_counter()
            page = render(collect([run]))
            made = time.perf_counter() - begun
            results[name] = {
                "bytes": len(page.encode()),
                "made_seconds": round(made, 2),
                "opened_milliseconds": opening(page, folder),
            }
        print(name, results[name], flush=True)
    save("report_page", results)


if __name__ == "__main__":
    main()
