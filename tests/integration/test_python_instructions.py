"""The example that makes instructions of Python's own documentation gives a file that can be tuned on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from turret.data.instructions import read_examples

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "python_instructions.py"


def run(out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), str(out)], capture_output=True, text=True, timeout=120)


def test_the_same_python_gives_the_same_examples(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a.jsonl"), run(tmp_path / "b.jsonl")
    assert (first.returncode, first.stderr) == (0, "") and (second.returncode, second.stderr) == (0, "")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    examples = read_examples(tmp_path / "a.jsonl")
    assert first.stdout.startswith(f"{len(examples)} examples in ")
    answers = [example.messages[1].content for example in examples.items]
    assert len(answers) > 300 and len(set(answers)) == len(answers), "an answer that is given twice says little"
    for example, answer in zip(examples.items, answers, strict=True):
        assert example.messages[0].content.startswith("What does the Python ") and 24 <= len(answer) <= 400


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("mine")
    assert run(tmp_path / "a.jsonl").returncode != 0
    assert (tmp_path / "a.jsonl").read_text() == "mine"
