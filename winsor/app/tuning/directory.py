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
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from winsor.app.runs.folder import RunFolder, json_bytes, result_claims
from winsor.core.contract import Guarantee
from winsor.core.ledger.ledger import Ledger
from winsor.core.randomness import fingerprint

if TYPE_CHECKING:
    from winsor.app.tuning.configured import ConfiguredTuning
    from winsor.tuning.outcome import TuningResult


class TuningDirectory(RunFolder):
    """The files of one tuning."""

    record = "tune.json"
    sorted_record = True

    def execute(self, tuning: ConfiguredTuning, source: str) -> dict[str, Any]:
        """Tune, or resume, or just return the result if the tuning is finished."""
        import torch

        from winsor.tuning.trials import tune

        if self.finished:
            self.refuse_disagreements(leftovers=False)
            finished = dict(self.read(self.result_name))
            self.claim({**tuning.to_table(), "data": finished.get("data")}, source)
            self._unseal()  # it may have been killed between the result and this
            return finished
        config = tuning.config
        if config.training.threads is not None:
            torch.set_num_threads(config.training.threads)
        data = tuning.load()
        score, trial = tuning.score(data), tuning.trial(data)
        self.claim({**tuning.to_table(), "data": data.digest}, source)
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
            begin=self.bind,
            random_state=_seed(tuning) if config.reproducible_noise else None,
            keep=keep,
        )
        return found[0]

    def _differences(self, settings: Mapping[str, Any]) -> list[str]:
        found = super()._differences(settings)
        return ["other data" if line.startswith("data: ") else line for line in found]

    def _keep(self, tuning: ConfiguredTuning, result: TuningResult, digest: str) -> dict[str, Any]:
        """Write what is released; the result last. Written again, it says the same."""
        from winsor.app.tuning.configured import SCORED_ON
        from winsor.training.saving.file import as_bytes

        released = tuning.settings.release == "all"
        self.seal("model.pt", as_bytes(result.best_model))
        if released:
            self.seal("trials.json", json_bytes(result.table()))
        content = {
            "name": tuning.config.name,
            "release": tuning.settings.release,
            "setting": result.best_setting,
            "score": result.best_score,
            "score_on": SCORED_ON[tuning.settings.score],
            "maximise": tuning.maximise,
            **_numbers(result.guarantee),
            "data": digest,
        }
        if released and len(result.trials) >= 4:
            content["importance"] = result.importance()
        return self.seal_result(content)

    def _unseal(self) -> None:
        if (self.path / "sealed").exists():
            from winsor.tuning.sealed import Seal

            Seal(self.path / "sealed", everything=False).destroy()

    # ------------------------------------------------------------------------------- checking

    @property
    def _resumable(self) -> bool:
        return (self.path / "sealed" / "key").exists()

    def _claims(self, ledger: Ledger, leftovers: bool) -> Iterator[str]:
        if ledger.config.get("method") != "tuning":
            yield "ledger.jsonl is not that of a tuning"
            return
        result = self.result()
        if result is not None:
            yield from self._result(result, ledger, leftovers)
        elif (self.path / "sealed" / "trials").exists() and self._resumable:
            from winsor.tuning.sealed import Seal

            seal = Seal(self.path / "sealed", everything=False)
            if not ledger.steps(fingerprint(seal.key(bytes))) and (seal.done or len(ledger)):
                yield "sealed/ is not of the tuning that the ledger names"
        elif len(ledger):
            yield "sealed/key or sealed/trials is missing although the tuning is not finished"

    def _result(self, result: dict[str, Any], ledger: Ledger, leftovers: bool) -> Iterator[str]:
        if result.get("release") != ledger.config.get("release"):
            yield "result.json and the ledger differ in what was released"
            return
        budget = self.recorded()["config"]["budget"]
        yield from result_claims(result, ledger, budget["delta"], budget["relation"])
        if leftovers and (self.path / "sealed").exists():
            yield "sealed/ is left although the tuning is finished: it holds key and trials"


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
