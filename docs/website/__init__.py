"""The documentation as a site that needs no network: `make site` writes build/site.

It joins the pages of the repository and those that programs wrote (`docs/built.py`).

contents.py    which pages there are, in which order, and where each goes
markdown.py    one Markdown page as HTML: anchors, highlighted code, tables that scroll, links
figures.py     figures of the benchmarks, drawn from the saved results
build.py       writes every page, and refuses links that lead nowhere
"""
