"""Replay of a small version of every record's training: the same functions, few rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import records_cnn
import torch
from records_training import CLASSES, Record, Setting, train
from torch.utils.data import TensorDataset

from winsor.audit import replay


def audit() -> dict[str, Any]:
    """Replay of a small version of every record's training: the same function, fewer rows."""
    found = {}
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(120, 3, 2, 2, generator=generator)
    y = torch.randint(CLASSES, (120,), generator=generator)
    small = Setting(1.0, 0.5, 40, 4)
    plain = Record("", 3.0, small, bounds=(2.0, 2.0))
    kinds = {way: (way, plain) for way in ("tuned", "blind", "tuned adjusted")}
    kinds |= {way: (way, plain) for way in ("inside", "inside adjusted")}
    kinds["tuned, whitened"] = ("tuned", replace(plain, white=5.0))
    axes = replace(plain, norm="unit", axes=(5.0, 0.7))
    kinds["tuned, axes, all rows"] = ("tuned", axes)
    channels = replace(axes, axes=(5.0, 0.8, 0.0))
    kinds["tuned, axes of channels, all rows"] = ("tuned", channels)
    kinds["tuned, axes, whitened, all rows"] = ("tuned", replace(axes, white=5.0))
    for name, (way, record) in kinds.items():

        def once(rows: TensorDataset, way: str = way, record: Record = record) -> Any:
            found = [rows[i] for i in range(len(rows))]
            x, y = (torch.stack(column) for column in zip(*found, strict=True))
            full = replace(small, batch=len(y), sampling="full")
            trained = train(x, y, record, way, 0, small=small if record.axes is None else full)
            return [p.detach().clone() for p in trained.model.parameters()]

        report = replay(once, TensorDataset(x, y), rows=[3])
        found[name] = {"passed": report.passed, "report": str(report).splitlines()[0]}
    return {**found, **records_cnn.audit()}
