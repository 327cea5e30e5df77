"""The command language of both, step by step: the contract suite's own report, kept whole in contract.txt."""

import os
import signal
import subprocess

from tests.gpu.comparison.stage import ROOT, Stage, output_directory

CLEAR_UP_SECONDS = 15.0


def run(stage: Stage) -> None:
    options = stage.options
    argv = [
        str(options.python),
        "-m",
        "tests.contract.report",
        "--control",
        str(options.vendor),
        "--control",
        str(options.front_end),
    ]
    env = dict(os.environ) | ({} if options.is_simulated else {"MPSD_CONTRACT_GPU": "1"})
    env.pop("OUT", None)
    report = subprocess.Popen(argv, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    is_cut = False
    try:
        text, _ = report.communicate(timeout=max(1.0, stage.left() - CLEAR_UP_SECONDS))
    except subprocess.TimeoutExpired:
        is_cut = True
        report.send_signal(signal.SIGINT)  # it ends its daemons
        text, _ = report.communicate(timeout=CLEAR_UP_SECONDS)
    if target := output_directory():
        (target / "contract.txt").write_text(text)
    lines = text.rstrip().splitlines()
    summary = "cut off: no time left" if is_cut else lines[-1] if lines else f"status {report.returncode}, no output"
    stage.add("command language, unexpected answers of both", mpsd=summary, goal="0", met=summary.startswith("0 "))
    differences = [line for line in lines if "| no:" in line or "NO, unexpected" in line]
    stage.keep("differences", differences)
    stage.add("steps that differ from each other", mpsd=str(len(differences)), remark="contract.txt has them")
