"""Replay: run a training twice on neighbouring datasets under the same coins, and compare.

neighbours.py   the dataset without a row, or with a hostile one in its place
coins.py        the same keys and seeds in every run
rows.py         where rows leave the dataset: samplers, tables, groups
transcript.py   every release of a run, how a second run is held against it, and the report
doors.py        the taps on winsor's doors
reachable.py    what a run leaves behind: weights, attributes, files, text
checks.py       what one run alone can show: noise used twice, rows drawn too often
session.py      `replay` itself
opacus.py       the same for another library's DP-SGD
"""
