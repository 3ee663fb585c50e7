"""The commands `calibrate` and `fit`: a hardware profile from measurements, and from finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from seqplan.cli_options import JsonFlag
from seqplan.planner.errors import SeqplanError

LONGEST_S = 165.0
"""With what the ranks take to start and the curves to fit, less than three minutes."""

ProfileOutput = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE.yaml", help="the cluster file to write")
]


def calibrate(
    output: ProfileOutput = Path("cluster.yaml"),
    nproc: Annotated[
        int | None, typer.Option(help="ranks of this machine; default: one a GPU, or one a core")
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="what to measure")] = "auto",
    seconds: Annotated[
        float,
        typer.Option(help=f"how long the ranks measure, up to {LONGEST_S:g}; starting them adds about 10"),
    ] = 90.0,
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
    from seqplan.runtime.calibration.calibrate_progress import progress_bar

    if not 1.0 <= seconds <= LONGEST_S:
        raise SeqplanError(f"--seconds {seconds:g} must be from 1 to {LONGEST_S:g}.")
    _check_target(output)
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


def fit(
    profile: Annotated[
        str, typer.Argument(metavar="PROFILE", help="the cluster file to refine, or a built-in name")
    ],
    more_runs: Annotated[list[Path] | None, typer.Argument(metavar="[metrics.jsonl]...", hidden=True)] = None,
    *,
    runs: Annotated[
        list[Path], typer.Option("--from", metavar="metrics.jsonl...", help="what finished runs left")
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.yaml", help="default: PROFILE's name with -fitted"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Refine a cluster file by finished runs.

    Fits few factors (matmuls, attention, memory, launches, links) to the runs' step times, says how much
    closer they are, and leaves what the runs do not determine as it was.
    """
    import time

    from seqplan import cli_inputs, profiles, render, render_calibration
    from seqplan.planner.calibration.cluster_profile import cluster_text
    from seqplan.planner.calibration.fit_runs import fit_runs
    from seqplan.planner.calibration.run_records import read_run
    from seqplan.planner.plan import check_output_path

    target = Path(f"{Path(profile).stem}-fitted.yaml") if output is None else output
    _check_target(target)
    check_output_path(target)
    cluster = cli_inputs.read_cluster(profile)
    given = [*runs, *(more_runs or [])]
    twice = sorted({str(path) for path in given if given.count(path) > 1})
    if twice:
        raise SeqplanError(f"--from names {', '.join(twice)} more than once.", "Give each run once.")
    read = [read_run(path) for path in given]
    count = f"{len(read)} run{'s' * (len(read) > 1)}"
    source = f"fitted by seqplan fit on {time.strftime('%Y-%m-%d')} to {count}"
    fitted = fit_runs(cluster, read, profiles.load_implementation, source)
    changed = any(factor.after != factor.before for factor in fitted.report.factors)
    if changed:
        named = fitted.cluster.model_copy(update={"name": target.stem})
        target.write_text(cluster_text(named, f"{cluster.name}, {source}"), encoding="utf-8")
    if as_json:
        render.show_json(fitted.report)
    else:
        render_calibration.show_fit(fitted.report)
    if not changed:
        render.tell("note", [f"nothing is determined by {count}, so {target} is not written"])
        raise typer.Exit(1)
    render.tell("written", [str(target)])


def _check_target(target: Path) -> None:
    if target.suffix not in (".yaml", ".yml"):
        raise SeqplanError(f"-o {target} is not a YAML file.", "Name it such as cluster.yaml.")
