"""The harness of benchmarks finds the model class, and gives the numbers that are worked out by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from loopscope.execute.plain import plain_run
from loopscope.harness import benchmarked
from loopscope.program import Program
from tests.tuning_tiny import tuning_folder

pytest.importorskip("lm_eval", reason="lm-eval is not installed")
pytestmark = pytest.mark.slow

CHOICE = """
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: TASK}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{prompt}}"
doc_to_choice: ["one", "two", "three"]
doc_to_target: "{{answer}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
WORDS = ["one", "two", "three"]


def test_a_local_task_under_two_programs_against_likelihoods_by_hand(tmp_path: Path) -> None:
    folder = tuning_folder(tmp_path / "llama")
    rows = [{"prompt": f"one two three. Add {at}:", "answer": at % 3} for at in range(9)]
    (tmp_path / "sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    (tmp_path / "sums.yaml").write_text(CHOICE.replace("TASK", str(tmp_path / "sums.jsonl")), encoding="utf-8")
    model = benchmarked(str(folder), device="cpu")
    encode, computed = model.tokenizer.encode, {}
    for program in ("F2", "F4"):
        right = []
        for row in rows:
            totals = []
            for word in WORDS:
                before, every = encode(row["prompt"]), encode(f"{row['prompt']} {word}")
                asked = Program.parse(program)
                run = plain_run(model.given.model, {"main": torch.tensor([every[:-1]])}, asked, maps={})
                said = run.read(asked.points[-1])[0].double().log_softmax(-1)
                totals.append(sum(float(said[at - 1, every[at]]) for at in range(len(before), len(every))))
            right.append(totals.index(max(totals)) == row["answer"])
        computed[program] = sum(right) / len(right)
        command = [sys.executable, "-m", "loopscope.harness", "run", "--model", "loopscope", "--tasks", "sums",
                   "--include_path", str(tmp_path), "--device", "cpu", "--batch_size", "4", "--log_samples",
                   "--output_path", str(tmp_path / program), "--model_args", f"pretrained={folder}",
                   f"program={program}"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HOME": str(tmp_path)})
        assert done.returncode == 0, done.stderr
        (file,) = (tmp_path / program).rglob("results_*.json")
        found = json.loads(file.read_text(encoding="utf-8"))["results"]["sums"]["acc,none"]
        assert found == pytest.approx(computed[program])
    (samples,) = (tmp_path / "F4").rglob("samples_*.jsonl")
    first = json.loads(samples.read_text(encoding="utf-8").splitlines()[0])
    before, every = encode(first["doc"]["prompt"]), [encode(f"{first['doc']['prompt']} {word}") for word in WORDS]
    pairs = [(before, each[len(before) :]) for each in every]
    likely = [total for total, _ in benchmarked(str(folder), "F4", device="cpu").likelihoods(pairs)]
    assert [float(each[0][0]) for each in first["resps"]] == pytest.approx(likely, rel=1e-4)


def test_what_does_not_fit_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loopscope.harness", "run", "--model", "loopscope", "--tasks", "arc_easy",
               "--model_args", f"pretrained={tmp_path}"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("loopscope: ")
