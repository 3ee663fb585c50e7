"""The command `limits`: how long a sequence, or how large a batch, each family of layouts can train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqplan.cli_options import Ask, JsonFlag, ModelArgument, flags_of
from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import Layout
from seqplan.planner.question import Pins

FamilyFlag = Annotated[str, typer.Option(metavar="NAMES", help="which layouts: of tp, sp, sp+pp and all")]
DevicesFlag = Annotated[
    str | None,
    typer.Option(metavar="COUNTS", help="such as 12,64; default: powers of two and what tp can be"),
]
PlotFlag = Annotated[
    Path | None, typer.Option(metavar="FILE.svg|FILE.png", help="draw a chart; needs matplotlib")
]


@flags_of(Pins, "pins", help_from=Layout)
@flags_of(Ask, "ask")
def limits(
    model: ModelArgument,
    *,
    ask: Ask,
    pins: Pins,
    family: FamilyFlag = "tp,sp,sp+pp,all",
    devices: DevicesFlag = None,
    plot: PlotFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Find the longest sequence or largest batch.

    With --global-batch-size the longest sequence is searched, with --seq-len the largest batch: for each
    family of layouts and each number of devices up to --gpus, the batch in one pass, without gradient
    accumulation. With both, the fewest devices that fit.
    """
    from seqplan import cli_inputs, plot_limits, render, render_limits
    from seqplan.planner import limits as planner
    from seqplan.planner.choosing import fewest_devices

    if ask.seq_len is None and ask.global_batch_size is None:
        raise SeqplanError(
            "limits needs --seq-len or --global-batch-size.",
            "It searches the one that is left out; with both, the fewest devices.",
        )
    families = [name.strip() for name in family.split(",")]
    notes: list[str] = []
    counts = [cli_inputs.read_count("--devices", each, notes) for each in (devices or "").split(",") if each]
    if ask.seq_len is not None and ask.global_batch_size is not None:
        if plot is not None:
            raise SeqplanError("--plot draws values over devices: the fewest devices have no chart.")
        asked = cli_inputs.read_question(model, ask)
        smallest = fewest_devices.fewest_devices(asked.question, pins, families, counts)
        smallest = smallest.model_copy(update={"warnings": tuple(asked.warnings)})
        if as_json:
            render.show_json(smallest)
        else:
            render_limits.show_fewest(smallest, asked.question, tuple(asked.notes))
        if all(each.gpus is None for each in smallest.smallest):
            raise typer.Exit(1)
        return
    if plot is not None:
        plot_limits.check_plot_path(plot)
    searched: planner.Searched = "seq_len" if ask.seq_len is None else "global_batch_size"
    asked = cli_inputs.read_question(model, ask.model_copy(update={searched: "1"}))
    answer = planner.find_limits(asked.question, searched, pins, families, counts)
    answer = answer.model_copy(update={"warnings": tuple(asked.warnings)})
    if plot is not None:
        plot_limits.plot_limits(answer, plot)
    if as_json:
        render.show_json(answer)
    else:
        render_limits.show_limits(answer, asked.question, tuple(asked.notes))
    if plot is not None:
        render.tell("written", [str(plot)])
    if not answer.best:
        raise typer.Exit(1)
