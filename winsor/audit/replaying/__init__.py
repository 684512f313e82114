"""Replay: run a training twice on neighbouring datasets under the same coins, and compare.

report.py       what was found, in words
neighbours.py   the dataset without a row, or with a hostile one in its place
coins.py        the same keys and seeds in every run
rows.py         where rows leave the dataset: samplers, tables, groups
transcript.py         every release of a run, and how a second run is held against it
doors.py        the taps on winsor's doors
reachable.py    what a run leaves behind: weights, attributes, files, text
checks.py       what one run alone can show: noise used twice, rows drawn too often
session.py      `replay` itself
opacus.py       the same for another library's DP-SGD

planted.py, planted_rules.py   trainings with one mistake each: all must be found
honest_trials.py               trainings with none: no alarm may be raised
"""
