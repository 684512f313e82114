"""A signature names the files it was made for, and nothing else passes for it."""

from __future__ import annotations

import json
import shutil

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_runs import table

from winsor.app.commands.main import main
from winsor.app.runs.config import from_table
from winsor.app.runs.execute import execute
from winsor.app.runs.folder import RunError
from winsor.app.runs.progress import Quiet
from winsor.app.runs.verifying import sign, signature_disagreements
from winsor.core.contract import ConfigurationError


def write_pair(folder, name, private=None):
    private = private or Ed25519PrivateKey.generate()
    secret = folder / f"{name}.pem"
    secret.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    public = folder / f"{name}.pub.pem"
    public.write_bytes(
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return secret, public


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    execute(from_table(table()), path, Quiet())
    return path


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def code_of(*arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return stop.value.code


def test_a_signed_run_is_verified_with_the_public_key(run, tmp_path, capsys):
    secret, public = write_pair(tmp_path, "officer")
    assert code_of("verify", run, "--key", public) == 1
    assert "not signed" in capsys.readouterr().out
    assert code_of("sign", run, "--key", secret) == 0
    assert code_of("verify", run, "--key", public) == 0
    assert "Signed" in capsys.readouterr().out


def test_another_key_or_a_changed_signature_is_refused(run, tmp_path, capsys):
    secret, _ = write_pair(tmp_path, "one")
    _, other = write_pair(tmp_path, "two")
    sign(run, secret)
    assert code_of("verify", run, "--key", other) == 1
    assert "was not made with" in capsys.readouterr().out
    for damage in ("{", "[]", '{"statement": 1, "signature": "zz"}', "[" * 100_000):
        (run / "signature.json").write_text(damage)
        assert list(signature_disagreements(run, other))


def test_a_run_written_anew_does_not_pass(run, tmp_path, capsys):
    """Every file agrees with every other; only the signature knows that they are others."""
    secret, public = write_pair(tmp_path, "officer")
    sign(run, secret)
    forged = tmp_path / "forged"
    execute(from_table(table(seed=5)), forged, Quiet())
    shutil.copy(run / "signature.json", forged)
    assert code_of("verify", forged) == 0
    capsys.readouterr()
    assert code_of("verify", forged, "--key", public) == 1
    said = capsys.readouterr().out
    assert "head is not what was signed" in said
    assert "ledger.jsonl is not what was signed" in said


def test_an_unfinished_or_tampered_run_is_not_signed(run, tmp_path):
    secret, _ = write_pair(tmp_path, "officer")
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(result | {"epsilon": 0.1}))
    with pytest.raises(RunError, match="do not agree"):
        sign(run, secret)
    (run / "result.json").unlink()
    with pytest.raises(RunError, match="finished"):
        sign(run, secret)
    assert not (run / "signature.json").exists()


def test_what_is_no_key_is_refused_by_name(run, tmp_path, capsys):
    secret, public = write_pair(tmp_path, "officer")
    wrong, wrong_public = write_pair(tmp_path, "curve", generate_private_key(SECP256R1()))
    (tmp_path / "text.pem").write_text("no key")
    for key in (public, wrong, tmp_path / "text.pem", tmp_path / "absent.pem"):
        with pytest.raises(ConfigurationError, match=r"--key must be|cannot read"):
            sign(run, key)
    for key in (secret, wrong_public, tmp_path / "text.pem"):
        assert code_of("verify", run, "--key", key) == 2
        assert "winsor: error: --key must be" in capsys.readouterr().err
