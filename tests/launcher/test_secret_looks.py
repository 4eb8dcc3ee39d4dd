"""What looks like a secret: the usual ones are named, and ordinary work is left in peace."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticgrid.core.secret_looks import is_no_path, why_name, why_text, why_variable
from elasticgrid.launcher.bundle import contents

TOP = Path(__file__).parents[2]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"

#: Put together here, so that no program that looks for secrets takes this file for one.
SECRETS = {
    "a key of a model's provider": f"OPENAI_API_KEY=sk-proj-{LETTERS[:40]}",
    "one without digits": f"OPENAI_API_KEY=sk-proj-{'a' * 40}",
    "a token of a code host": f"token: ghp_{LETTERS[:36]}",
    "a fine-grained one": f"url = https://github_pat_{LETTERS[:22]}_{LETTERS[:59]}@github.com/a/b",
    "a token of another code host": f"GITLAB=glpat-{LETTERS[:20]}",
    "a token of a model hub": f"login('hf_{LETTERS[:34]}')",
    "a token of a chat": f"slack: xoxb-{'123456789012'}-{'123456789012'}-{LETTERS[:24]}",
    "an access key": f"key = AKIA{LETTERS[36:52].upper()}",
    "its secret": f"aws_secret_access_key = {LETTERS[20:40]}/{LETTERS[36:55]}",
    "an .npmrc": f"//packages.example.org/:_authToken={LETTERS[:36]}",
    "a .pypirc": f"[pypi]\nusername = __token__\npassword = pypi-AgE{LETTERS}",
    "a private key": "-----BEGIN OPENSSH " + "PRIVATE KEY-----",
    "a signed token": f"jwt=eyJ{LETTERS[:20]}.eyJ{LETTERS[:20]}.{LETTERS[:20]}",
    "a password in YAML": "database:\n  password: hunter2-correct-horse",
    "one in JSON": '{"db_password": "hunter2-correct-horse"}',
    "one in a program": "SECRET = 'hunter2-correct-horse'",
    "one of letters only": "DB_PASSWORD=correcthorsebatterystaple",
    "an address with a password": "postgres://grid:hunter22@db.internal/train",
}


@pytest.mark.parametrize("text", SECRETS.values(), ids=SECRETS)
def test_a_usual_secret_is_seen_and_not_repeated(text: str) -> None:
    why = why_text(text.encode())
    assert why
    assert not any(word in why for word in text.replace("=", " ").split() if len(word) >= 16 and "_" not in word)


@pytest.mark.parametrize(
    "text",
    [
        "token = os.environ['HF_TOKEN']",
        "token: str = field(default_factory=read_the_token)",
        "password = getpass.getpass('password please')",
        "api_key=settings.credentials.api_key,",
        "PASSWORD=${DATABASE_PASSWORD_OF_THE_DAY}",
        "HF_TOKEN: <your token of the hub goes here>",
        "WANDB_API_KEY=your-api-key-1234567890",
        "SECRET_KEY=xxxxxxxxxxxxxxxxxxxxxxxx",
        "HF_TOKEN_FILE=/run/secrets/hf_token_of_team_1",
        "password_file: /etc/grid/passwords/2024.txt",
        "token: /run/secrets/hf_token_of_team_1",
        'eos_token: "<|end_of_text_number_1|>"',
        'pad_token = "[PAD_TOKEN_NUMBER_1]"',
        "unk_token: sentencepiece_unknown",
        "secret: training-registry-credentials",
        "max_tokens_per_batch = 1048576000000000",
        "TOKENIZERS_PARALLELISM=false_for_all_workers_1",
        "if token == expected_token_of_round_1: pass",
        "hf_hub_download(repo, filename='model-00001-of-00002.safetensors')",
        "sk-learn and task-distributed-training-with-many-workers",
        "sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "https://user:password@example.com",
    ],
)
def test_what_only_speaks_of_secrets_is_none(text: str) -> None:
    assert why_text(text.encode()) == ""


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "piece",
    [b"0a", b"sk-", b"sk-a_", b"token:", b'token="', b"://a:", b"eyJaaaaaaaaaa.", b"xoxb-", b"-----BEGIN A ", b"_"],
)
def test_no_text_is_so_long_that_looking_at_it_takes_for_ever(piece: bytes) -> None:
    # Where each of so many places is tried to the end of the text, this takes minutes.
    why_text(piece * (65_536 // len(piece)))


@pytest.mark.parametrize(
    "name", ["prod.env", ".envrc", ".env.local", ".npmrc", ".pypirc", ".netrc", "tls.key", "aws-credentials", "id_rsa"]
)
def test_names_that_say_it_are_enough(name: str) -> None:
    assert why_name(name)


@pytest.mark.parametrize("name", ["environment.py", "secrets.py", "prod.env.example", "keyboard.txt", "tokenizer.json"])
def test_names_of_programs_and_examples_say_nothing(name: str) -> None:
    assert why_name(name) == ""


def test_a_variable_is_looked_at_with_its_name() -> None:
    assert why_variable("HF_TOKEN", "a-value-of-some-18")
    assert why_variable("ANYTHING", f"hf_{LETTERS[:34]}")
    assert why_variable("DB_PASSWORD", 'with "quotes" and 1 space') == ""  # a sentence is no token
    assert why_variable("TOKENIZER", "a-value-of-some-18") == ""
    assert why_variable("HF_TOKEN", "") == ""
    assert why_variable("HF_TOKEN", "/run/secrets/hf-token-18") == ""


@pytest.mark.parametrize("text", ["hunter2", f"hf_{LETTERS[:34]}", f"{LETTERS[:20]}/{LETTERS[30:50]}", LETTERS[:32]])
def test_a_secret_in_the_place_of_its_path_is_told_from_a_path(text: str) -> None:
    assert is_no_path(text)


@pytest.mark.parametrize(
    "text", ["./hunter2", "/run/secrets/hf", "../hf.token", "~/.cache/hf/token", "secrets/hf.token"]
)
def test_a_path_is_a_path(text: str) -> None:
    assert not is_no_path(text)


@pytest.mark.parametrize("folder", ["elasticgrid", "examples", "benchmarks", "docs", "schemas", "services"])
def test_nothing_in_our_own_sources_and_examples_looks_like_a_secret(folder: str) -> None:
    found = contents(TOP / folder)
    assert found.entries
    assert found.warnings == ()
