"""The commands `calibrate` and `fit`: a hardware profile from measurements, and from finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from seqplan.cli_options import JsonFlag
from seqplan.planner.errors import SeqplanError

LONGEST_S = 170.0
"""With what the ranks take to start, less than three minutes."""

ProfileOutput = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE.yaml", help="the cluster file to write")
]


def calibrate(
    output: ProfileOutput = Path("cluster.yaml"),
    nproc: Annotated[
        int | None, typer.Option(help="ranks of this machine; default: one a GPU, or one a core")
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="what to measure")] = "auto",
    seconds: Annotated[float, typer.Option(help="how long to measure, up to 170")] = 90.0,
    as_json: JsonFlag = False,
) -> None:
    """Measure this machine and write a cluster file.

    Matmuls, attention, memory and what moves between ranks, with all ranks at work at once; on several nodes
    start it with torchrun. The file is what --cluster reads, every number with its source.
    """
    from seqplan import cli_inputs, render, render_calibration
    from seqplan.planner.calibration.cluster_profile import profile_of, profile_text
    from seqplan.planner.plan import check_output_path
    from seqplan.profiles.cluster_file import cluster_from
    from seqplan.runtime.calibrate import measure
    from seqplan.runtime.calibrate_progress import progress_bar

    if not 1.0 <= seconds <= LONGEST_S:
        raise SeqplanError(f"--seconds {seconds:g} must be from 1 to {LONGEST_S:g}.")
    if output.suffix not in (".yaml", ".yml"):
        raise SeqplanError(f"-o {output} is not a YAML file.", "Name it such as cluster.yaml.")
    check_output_path(output)
    with progress_bar("calibrating") as progress:
        measured = measure(nproc, device, seconds, progress)
    if measured is None:  # another rank of a job than the first
        return
    known = None if measured.device_kind == "cpu" else cli_inputs.known_device(measured.device_name)
    profile = profile_of(measured, output.stem, known)
    cluster = cluster_from(profile, str(output))
    output.write_text(profile_text(profile, measured), encoding="utf-8")
    if as_json:
        render.show_json(
            {"cluster": cluster.model_dump(mode="json"), "measured": measured.model_dump(mode="json")}
        )
    else:
        render_calibration.show_calibration(cluster, measured)
    render.tell("written", [str(output)])
