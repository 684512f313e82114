"""A tuning's directory: everything needed to resume it, to check it and to use its result.

    tune.toml      the configuration, as it was given
    tune.json      the same with every default filled in, and what names the data
    ledger.jsonl   the whole tuning as one event (or the composition of its trials)
    sealed/        while it runs: key and trials so far, for the owner's eyes only
    model.pt       the best trial's weights
    trials.json    settings and scores of all trials, with release = "all" only
    result.json    setting, score and guarantee; its presence means "finished"

No file says how many trials there were, which one won, or how long it took, unless all of them were
released. (File times do tell how long it took: publish the files, not the directory.)
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from winsor.app.runs.directory import RunError, replace_file, writing
from winsor.app.tuning.configured import SCORED_ON, ConfiguredTuning
from winsor.core.contract import ConfigurationError, Guarantee, LedgerError, Neighbouring
from winsor.core.ledger.guarantee import spent_by
from winsor.core.ledger.ledger import Ledger
from winsor.tuning.outcome import TuningResult
from winsor.tuning.trials import Seal, tune


def is_tuning(path: Path) -> bool:
    """Return whether a directory is that of a tuning."""
    return (path / "tune.json").exists()


class TuningDirectory:
    """The files of one tuning."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def source(self) -> str:
        """Return the text of the configuration that this directory was made with."""
        try:
            return (self.path / "tune.toml").read_text(encoding="utf-8")
        except OSError as error:
            raise RunError(
                f"{self.path} must be the directory of a tuning. Got one without tune.toml instead."
            ) from error

    def result(self) -> dict[str, Any] | None:
        """Return the result, or None while the tuning is not finished."""
        path = self.path / "result.json"
        if not path.exists():
            return None
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"cannot read {path}: {error}.") from error
        return found

    def execute(self, tuning: ConfiguredTuning, source: str) -> dict[str, Any]:
        """Tune or resume, and return the result; a finished tuning only returns it."""
        finished = self.result()
        if finished is not None:
            self._claim(tuning, source, finished["data"])
            self._refuse_disagreements()
            self._unseal()  # it may have been killed between the result and this
            return finished
        config = tuning.config
        if config.training.threads is not None:
            torch.set_num_threads(config.training.threads)
        data = tuning.load()
        score, trial = tuning.score(data), tuning.trial(data)
        self._claim(tuning, source, data.digest)
        found: list[dict[str, Any]] = []

        def keep(result: TuningResult) -> None:
            found.append(self._keep(tuning, result, data.digest))

        tune(
            tuning.train(data),
            tuning.space,
            trial=trial,
            epsilon=config.budget.epsilon,
            delta=config.budget.delta,
            trials=tuning.law(),
            release=tuning.settings.release,
            score=score,
            maximise=tuning.maximise,
            relation=config.budget.relation,
            directory=self.path,
            random_state=_seed(tuning) if config.reproducible_noise else None,
            keep=keep,
        )
        return found[0]

    def _claim(self, tuning: ConfiguredTuning, source: str, digest: str) -> None:
        """Make the directory, or check that it belongs to the same tuning of the same data."""
        if (self.path / "config.json").exists() or (self.path / "compare.json").exists():
            raise RunError(
                f"{self.path} must be a new directory or that of a tuning. Got that of a run "
                "instead. Choose another one with --run."
            )
        content = json.dumps({**tuning.to_table(), "data": digest}, indent=1, sort_keys=True) + "\n"
        path = self.path / "tune.json"
        if not path.exists():
            with writing(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
            replace_file(self.path / "tune.toml", source.encode())
            replace_file(path, content.encode())
        elif path.read_text(encoding="utf-8") != content:
            raise RunError(
                f"{self.path} holds a tuning of another configuration or of other data. Choose "
                "another directory with --run, or restore them to resume."
            )

    def _keep(self, tuning: ConfiguredTuning, result: TuningResult, digest: str) -> dict[str, Any]:
        """Write what is released; the result last. Written again, it says the same."""
        released = tuning.settings.release == "all"
        buffer = io.BytesIO()
        torch.save(result.best_model, buffer)
        replace_file(self.path / "model.pt", buffer.getvalue())
        if released:
            replace_file(self.path / "trials.json", _json(result.table()))
        content = {
            "name": tuning.config.name,
            "release": tuning.settings.release,
            "setting": result.best_setting,
            "score": result.best_score,
            "score_on": SCORED_ON[tuning.settings.score],
            "maximise": tuning.maximise,
            **_numbers(result.guarantee),
            "ledger_head": result.ledger.head,
            "data": digest,
        }
        if released and len(result.trials) >= 4:
            content["importance"] = result.importance()
        replace_file(self.path / "result.json", _json(content))
        return content

    def _unseal(self) -> None:
        if (self.path / "sealed").exists():
            Seal(self.path / "sealed", everything=False).destroy()

    # ------------------------------------------------------------------------------- checking

    def disagreements(self, head: str | None = None) -> list[str]:
        """Return sentences about files that do not agree; none if all do."""
        return list(self._disagreements(head))

    def _disagreements(self, head: str | None) -> Iterator[str]:
        try:
            ledger = Ledger.read(self.path / "ledger.jsonl")
        except (LedgerError, ConfigurationError) as error:
            yield f"ledger.jsonl: {error}"
            return
        if head is not None and ledger.head != head.lower():
            yield f"the ledger's head is {ledger.head}, not {head}"
        if ledger.config.get("method") != "tuning":
            yield "ledger.jsonl is not that of a tuning"
            return
        try:
            result = self.result()
        except RunError as error:
            yield f"result.json: {error}"
            return
        if result is not None:
            yield from self._result(result, ledger)

    def _result(self, result: dict[str, Any], ledger: Ledger) -> Iterator[str]:
        claims = {"ledger_head": ledger.head, "release": ledger.config.get("release")}
        for name, truth in claims.items():
            if result.get(name) != truth:
                yield f"result.json says {name} = {result.get(name)!r}, the ledger says {truth!r}"
                return
        delta, claimed = result.get("delta"), result.get("epsilon")
        declared = json.loads((self.path / "tune.json").read_text(encoding="utf-8"))
        budget = declared["config"]["budget"]
        if delta != budget["delta"] or result.get("relation") != budget["relation"]:
            yield "result.json and tune.json differ in delta or in the relation"
            return
        spent = spent_by(ledger.history(), delta, Neighbouring(budget["relation"])).epsilon
        if not isinstance(claimed, float) or not math.isclose(claimed, spent, rel_tol=1e-6):
            yield f"result.json says epsilon = {claimed!r}, the ledger spends {spent:.6g}"
        if result["release"] == "best" and (self.path / "trials.json").exists():
            yield "trials.json is there although only the best trial was paid for"
        if (self.path / "sealed").exists():
            yield "sealed/ is left although the tuning is finished: it holds key and trials"

    def _refuse_disagreements(self) -> None:
        found = [line for line in self.disagreements() if not line.startswith("sealed/")]
        if found:
            raise RunError(
                f"the files of {self.path} do not agree: {'; '.join(found)}. Restore them from a "
                "copy. Nothing was changed or deleted."
            )


def _numbers(spent: Guarantee) -> dict[str, Any]:
    return {
        "epsilon": spent.epsilon,
        "delta": spent.delta,
        "relation": spent.relation.value,
        "accountant": spent.accountant,
        "guarantee": str(spent),
        "conditions": list(spent.conditions),
    }


def _seed(tuning: ConfiguredTuning) -> int:
    """Reproducible noise belongs to the configuration: another one must not meet the same noise."""
    text = json.dumps(tuning.to_table(), sort_keys=True, default=str).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()
