"""What concerns the process itself: imports, signals, a closed pipe, a full disk, CPU time."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.command_line import BERT, TINY


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "seqplan", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_suggest_never_loads_torch() -> None:
    code = (
        f"import sys; from seqplan.__main__ import main; main({['suggest', *BERT]!r}); "
        "print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "Pick: " in done.stdout
    assert done.stdout.splitlines()[-1] == "False False"


@pytest.mark.ranks
def test_a_plan_is_trained_and_compared(tmp_path: Path) -> None:
    """The whole line: suggest, plan.yaml, run on real text, planned beside measured."""
    text = tmp_path / "text.py"
    text.write_bytes(Path(os.__file__).read_bytes())
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    asked = [
        "tiny",
        "--cluster",
        "local",
        "--gpus",
        "2",
        "--sp",
        "2",
        "--seq-len",
        "128",
        "--global-batch-size",
        "4",
    ]
    planned = start("suggest", *asked, "-o", "plan.yaml", "--json", cwd=tmp_path, env=environment)
    pick = json.loads(planned.communicate(timeout=60)[0])["pick"]
    trained = start(
        "run", "plan.yaml", "--data", "text.py", "--steps", "4", "--json", cwd=tmp_path, env=environment
    )
    out, err = trained.communicate(timeout=200)
    assert trained.returncode == 0, err
    summary = json.loads(out)
    assert summary["schema"] == "seqplan-json/1"
    assert summary["steps"] == 4
    # Untrained weights know nothing of the 260 tokens (log 260); four steps know more.
    assert summary["last_loss"] < summary["first_loss"] < 1.1 * math.log(260)
    [stage] = summary["stages"]
    assert stage["planned_memory_bytes"] == pytest.approx(pick["memory"]["allocated_bytes"], rel=1e-9)
    assert stage["measured_memory_bytes"] == pytest.approx(stage["planned_memory_bytes"], rel=0.05)
    lines = (tmp_path / "seqplan-run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]


def test_a_reader_that_leaves_is_no_fault() -> None:
    process = start("models", "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 141


def test_interrupt_leaves_no_plan_and_says_130(tmp_path: Path) -> None:
    # The interrupt is held until the search runs: a stand-in for it waits.
    code = (
        "import sys, time; from seqplan.planner import search\n"
        "def wait(*_):\n    print('searching', flush=True); time.sleep(60)\n"
        "search.suggest = wait\n"
        f"from seqplan.__main__ import main; sys.exit(main({['suggest', *TINY, '-o', 'plan.yaml']!r}))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "searching\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, err) == ("", "seqplan: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_two_writers_leave_one_whole_plan(tmp_path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    writers = [
        start("suggest", *TINY, "--sp", sp, "-o", "plan.yaml", cwd=tmp_path, env=environment) for sp in "12"
    ]
    assert [writer.communicate(timeout=60)[1] for writer in writers] == ["written: plan.yaml\n"] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["plan.yaml"]
    assert yaml.safe_load((tmp_path / "plan.yaml").read_text())["layout"]["sp"] in (1, 2)


def test_a_terminal_without_unicode_still_gets_the_answer(tmp_path: Path) -> None:
    folder = tmp_path / "mod\u00e8le"
    folder.mkdir()
    config = {
        "model_type": "gpt2",
        "n_layer": 2,
        "n_embd": 64,
        "n_head": 4,
        "n_positions": 64,
        "vocab_size": 512,
    }
    (folder / "config.json").write_text(json.dumps(config))
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    process = start("models", str(folder), env=environment)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "mod\\xe8le" in out


def test_a_full_disk_is_one_line() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "seqplan", "models"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 2
    assert done.stderr == "seqplan: No space left on device.\n"


@pytest.mark.parametrize(("arguments", "limit_s"), [(["--help"], 0.5), (["suggest", *BERT], 1.0)])
def test_start_is_quick(arguments: list[str], limit_s: float) -> None:
    """CPU time of the whole process, the best of three: the machine may be busy."""
    spent = []
    for _ in range(3):
        before = os.times()
        subprocess.run(
            [sys.executable, "-m", "seqplan", *arguments], capture_output=True, timeout=60, check=True
        )
        after = os.times()
        spent.append(
            after.children_user + after.children_system - before.children_user - before.children_system
        )
        time.sleep(0.05)
    assert min(spent) < limit_s
