"""Commands of processes as people know them."""

from __future__ import annotations

import pytest

from memtopo.common.processes import known_command


@pytest.mark.parametrize(
    ("command", "known"),
    [
        ("/usr/bin/python3.11 /app/.venv/bin/memtopo apply --hold weights.yaml", "memtopo apply --hold weights.yaml"),
        ("python -m memtopo ls", "memtopo ls"),
        ("python3 -m vllm.entrypoints.openai.api_server --port 8000", "vllm.entrypoints.openai.api_server --port 8000"),
        ("python -Im memtopo ls", "memtopo ls"),
        ("python -u -X dev -W error reader.py 7", "reader.py 7"),
        ("./readers/reader.py", "reader.py"),
        ("python -c import-memtopo x", "python -c"),
        ("python -", "python"),
        ("python3", "python3"),
        ("/opt/engine/bin/server --model /m/llama", "server --model /m/llama"),
        ("pythonic.sh -m x", "pythonic.sh -m x"),
        ("VLLM::EngineCore", "VLLM::EngineCore"),
        ("ray::Actor.step/1", "ray::Actor.step/1"),
        ("", "python"),
    ],
)
def test_a_command_is_that_of_the_script_or_module(command: str, known: str) -> None:
    assert known_command(command.split(" "), "python") == known


def test_code_has_the_name_that_its_process_has_given_itself() -> None:
    code = ["python", "-Pc", "from memtopo import main"]
    assert known_command([*code, "pair"], "memtopo-join") == "memtopo-join"
    assert known_command([*code, "apply", "--hold", "kv.yaml"], "memtopo") == "memtopo apply --hold kv.yaml"
