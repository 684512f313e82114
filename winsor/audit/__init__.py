"""Audits: try to break every privacy claim, and say how far the attempt went.

`curve.py` has the test, `honest.py` every mechanism with its worst adversary, `mutants.py` wrong
mechanisms that the test must catch, `one_run.py` the audit of a user's own training. Ideas of
`winsor/contrib` and the claims of `winsor/papers` bring audits of their own. On the command line:
``winsor audit mechanisms | published | mutants | run``.
"""
