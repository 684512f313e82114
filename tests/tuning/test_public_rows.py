"""`winsor plan --data`: proposals from public rows, and clear refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from winsor.app.commands import main as cli
from winsor.core.contract import ConfigurationError
from winsor.planning.plan import Question
from winsor.tuning.public_rows import propose, public_rows, read_public


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        cli.main(["plan", *arguments])
    captured = capsys.readouterr()
    return int(stop.value.code or 0), captured.out, captured.err


def table(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((n, 4))
    return x, (x[:, 0] - x[:, 1] > 0).astype(np.int64)


@pytest.fixture
def public(tmp_path):
    x, y = table()
    path = tmp_path / "public.npz"
    np.savez(path, x=x, y=y)
    return path


def test_proposes_every_number_of_a_run(public, capsys):
    options = ("--n", "1e4", "--epsilon", "3", "--dry-steps", "20")
    code, out, _ = run(capsys, "--data", str(public), *options, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["batch_size"] == 200 and found["steps"] == 400 and found["delta"] == 1e-5
    assert found["threshold"] > 0 and found["learning_rate"] > 0
    assert found["noise_multiplier"] > 0.3
    losses = [entry["loss"] for entry in found["ranking"]]
    assert losses == sorted(losses) and losses[0] < 0.8 * found["untrained_loss"]
    assert found["rule"] == found["ranking"][0]["rule"]


def test_shows_a_table_for_people(public, capsys):
    options = ("--n", "2000", "--epsilon", "3", "--dry-steps", "5", "--steps", "50")
    code, out, _ = run(capsys, f"--data={public}", *options)
    assert code == 0
    for word in ("rule", "threshold", "batch size", "learning rate", "steps", "noise multiplier"):
        assert word in out


def test_the_proposal_of_a_regression_learns():
    x, _ = table(400)
    rows = public_rows(x, x @ [2.0, -1.0, 0.0, 0.5])
    asked = Question(n=5000, epsilon=3.0, batch_size=100, steps=100)
    found = propose(rows, asked, dry_steps=40)
    assert rows.classes is None and found.run.batch_size == 100
    assert found.found.best.loss < 0.5 * found.found.untrained_loss


def test_bytes_become_images_and_large_files_are_sampled():
    x = np.random.default_rng(0).integers(0, 256, (10_500, 2, 2)).astype(np.uint8)
    rows = public_rows(x, np.arange(10_500) % 3)
    inputs, labels = rows.data.tensors
    assert rows.shape == (1, 2, 2) and rows.classes == 3 and len(rows.data) == 10_000
    assert float(inputs.min()) == -1 and float(inputs.max()) == 1
    assert sorted(set(labels.tolist())) == [0, 1, 2]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros(3)}, "arrays x and y"),
        ({"x": np.zeros(3), "y": np.zeros(3)}, "one row per record"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(4)}, "one value per row"),
        ({"x": np.full((200, 2), np.nan), "y": np.arange(200) % 2}, "finite"),
        ({"x": np.zeros((200, 2)), "y": np.arange(200)}, "2 to 100 classes"),
        ({"x": np.zeros((200, 2)), "y": np.zeros(200, dtype=int)}, "2 to 100 classes"),
        ({"x": np.array([["a"], ["b"]]), "y": np.zeros(2)}, "must be numbers"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "wrong.npz", **arrays)
    with pytest.raises(ConfigurationError, match=message):
        read_public(tmp_path / "wrong.npz")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "nowhere.npz", "--n", "100", "--epsilon", "1"), "that exists"),
        (("--data", "PUBLIC", "--n", "100.5", "--epsilon", "1"), "whole number"),
        (
            ("--data", "PUBLIC", "--n", "1000", "--epsilon", "-1"),
            "epsilon must be a positive",
        ),
        (("--data", "PUBLIC", "--n", "1000", "--epsilon", "1", "--model", "x"), "model must be"),
        (("--data", "PUBLIC", "--n", "100", "--epsilon", "1", "--batch-size", "101"), "at most n"),
        (("--data", "PUBLIC", "--epsilon", "1"), "--n"),
        (("--data",), "--data"),
    ],
)
def test_errors_end_in_one_line_and_code_2(public, capsys, arguments, message):
    words = [str(public) if word == "PUBLIC" else word for word in arguments]
    code, _, err = run(capsys, *words)
    assert code == 2 and message in err
    assert err.startswith("winsor: error: ") and err.count("\n") == 1


def test_a_broken_archive_is_refused(tmp_path):
    (tmp_path / "broken.npz").write_bytes(b"not a zip")
    with pytest.raises(ConfigurationError, match="NumPy archive of plain numbers"):
        read_public(tmp_path / "broken.npz")
