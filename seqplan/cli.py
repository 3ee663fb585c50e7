"""The commands. Each reads its input, calls one function of planner or runtime, and prints the answer.

No formulas here. What a command needs is imported in its body: `--help` must not pay for numpy, a plan
not for torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqplan import __version__, cli_calibrate, cli_catalog, cli_limits, cli_verify
from seqplan.cli_options import (
    Ask,
    JsonFlag,
    LayoutFlag,
    ModelArgument,
    OutputFlag,
    TokensFlag,
    TopFlag,
    TraceFlag,
    flags_of,
)
from seqplan.planner.layout import Layout, parse_degrees
from seqplan.planner.question import Pins
from seqplan.runtime.options import RunOptions

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: rich's panels shorten --micro-batch-size in 80 columns
    help="Find the dp x pp x tp x sp layout that trains a transformer fastest within memory, and train it.",
)

SHOWN = 5
"""Layouts in the table of the best where --top says nothing."""


def print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"seqplan {__version__}")
        raise typer.Exit


@app.callback()
def seqplan(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Options of seqplan itself."""


@app.command()
@flags_of(Pins, "pins", help_from=Layout)
@flags_of(Ask, "ask")
def suggest(
    model: ModelArgument,
    *,
    ask: Ask,
    pins: Pins,
    top: TopFlag = None,
    tokens: TokensFlag = None,
    output: OutputFlag = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="simulate the pick's memory, as the command verify does")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Pick the fastest layout that fits, and say why.

    Scores every layout, and shows the best ones and what made the others fall.

    MODEL is a built-in name, a config.json or a folder that holds one; --cluster, --seq-len and
    --global-batch-size are needed. Every other flag named after a field of the layout pins that field.
    """
    from seqplan import cli_inputs, cli_suggest, render, render_suggestion, render_verification
    from seqplan.planner import plan, search
    from seqplan.planner.choosing import job

    wanted = None if tokens is None else job.parse_tokens(tokens)
    if output is not None:
        plan.check_output_path(output)
    if verify:
        cli_verify.require_our_trainer(ask.implementation)
    asked = cli_inputs.read_question(model, ask)
    answer = search.suggest(asked.question, pins, top or SHOWN)
    answer = cli_suggest.with_what_was_asked(answer, asked, pins, wanted, with_front=top is not None)
    if output is not None and answer.pick is not None:
        plan.save_plan(plan.make_plan(asked.question, answer.pick), output)
    proof = None
    if verify and answer.pick is not None:
        proof = cli_verify.simulated(asked.question, answer.pick.layout)
    if as_json:
        checked = {} if proof is None else {"verification": proof.model_dump(mode="json", by_alias=True)}
        render.show_json({**answer.model_dump(mode="json", by_alias=True), **checked})
    else:
        render_suggestion.show_suggestion(answer, asked.question)
        if proof is not None:
            render_verification.show_proof(proof)
    if output is not None:
        cli_suggest.tell_written(output, answer)
    if answer.pick is None:
        raise typer.Exit(1)


@app.command()
@flags_of(Pins, "pins", help_from=Layout)
@flags_of(Ask, "ask")
def explain(
    subject: Annotated[
        str, typer.Argument(metavar="PLAN.yaml|MODEL", help="a plan file; or a model, with --layout")
    ],
    *,
    ask: Ask,
    pins: Pins,
    layout: LayoutFlag = None,
    tensors: Annotated[
        bool, typer.Option("--tensors", help="list every tensor that a layer keeps, with its bytes")
    ] = False,
    trace: TraceFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Show one layout in full, legal or not.

    By stage and kind: of a plan file, or of a layout typed as --layout. What was not typed takes its
    default, which is said, beside the best that the search finds with what was typed, and what suggest picks
    with nothing pinned.
    """
    from seqplan import cli_inputs, render, render_layout
    from seqplan.planner import search
    from seqplan.planner.choosing.completion import completion
    from seqplan.planner.choosing.free_pick import free_pick
    from seqplan.planner.choosing.placement import placement_lines
    from seqplan.planner.choosing.state_notes import states_note
    from seqplan.planner.memory.kept_tensors import kept_tensors
    from seqplan.planner.output_file import check_output_path
    from seqplan.planner.timing.chrome_trace import write_trace

    if trace is not None:
        check_output_path(trace, "trace.json")
    if layout is None:
        asked, chosen = cli_inputs.read_plan(Path(subject), ask, pins)
    else:
        asked, chosen = cli_inputs.read_layout(subject, layout, ask, pins)
    typed = {} if layout is None else parse_degrees(layout) | pins.given()
    rest = completion(asked.question, chosen, typed) if typed else None
    scored = search.score(asked.question, chosen)
    free = free_pick(asked.question, scored)
    scored = scored.model_copy(update={"warnings": (*asked.warnings, *scored.warnings)})
    if scored.memory is not None:
        asked.notes.append(states_note(asked.question, chosen, scored.memory))
    placed = placement_lines(asked.question, chosen, scored.time) if scored.time is not None else ()
    kept = kept_tensors(asked.question, chosen) if tensors else ()
    if trace is not None:
        write_trace(asked.question, chosen, trace)
    if as_json:
        listed = {"tensors": [each.model_dump(mode="json") for each in kept]} if tensors else {}
        more = {} if rest is None else {"completion": rest.model_dump(mode="json")}
        said = {"free_pick": free and free.model_dump(mode="json"), "notes": asked.notes, "placement": placed}
        render.show_json({**scored.model_dump(mode="json"), **listed, **more, **said})
    else:
        render_layout.show_layout(scored, asked.question, tuple(asked.notes), rest, placed, free)
        if tensors:
            render_layout.show_tensors(kept, chosen)
    if trace is not None:
        render.tell("written", [f"{trace}: open it in ui.perfetto.dev"])


@app.command()
def score(
    cases: Annotated[str, typer.Argument(metavar="FILE.jsonl", help="one case a line; - reads stdin")],
    as_json: Annotated[bool, typer.Option("--json", help="accepted; the answers are JSON either way")] = True,
) -> None:
    """Score many cases at once, a JSON line each.

    One line out for each line in, in their order. A bad case gives its id, its line and the error; exit 1
    if every case is one. A line of input, broken here into three:

    \b
    {"id": 1, "model": "llama3-8b", "cluster": "dgx-h100", "gpus": 8,
     "train": {"seq_len": 4096, "global_batch_size": 64},
     "layout": "dp1,pp1,tp2,sp4,micro_batch_size=1"}

    layout may also be an object of its fields; "implementation": "megatron-core" asks for another trainer;
    "headroom_fraction": 0.05 in train keeps free what the other commands keep, and a case by itself nothing.
    Counts may be "32k", as with the flags.
    """
    from seqplan import cli_inputs, render
    from seqplan.planner.score_cases import score_cases

    good = bad = 0
    with cli_inputs.open_lines(cases) as lines:
        for answer in score_cases(lines, cli_inputs.loaders()):
            render.show_json(answer)
            good, bad = good + ("error" not in answer), bad + ("error" in answer)
    if bad and not good:
        raise typer.Exit(1)


@app.command()
def validate(
    source: Annotated[
        str | None, typer.Argument(metavar="[SOURCE]", help="one publication, with all of its rows")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare predictions with published measurements.

    Exit 1 where a goal is missed.
    """
    from seqplan import cli_inputs, profiles, render, render_published
    from seqplan.planner.measured.published_comparison import compare

    names = profiles.published_names() if source is None else (source,)
    compared = [compare(profiles.load_published(name), cli_inputs.loaders()) for name in names]
    if as_json:
        render.show_json({"sources": [each.model_dump(mode="json") for each in compared]})
    else:
        render_published.show_sources(compared, in_full=source is not None)
    if not all(each.goals_met for each in compared):
        raise typer.Exit(1)


app.command()(cli_verify.verify)
app.command()(cli_limits.limits)
app.command()(cli_calibrate.calibrate)
app.command()(cli_calibrate.fit)
app.command()(cli_catalog.models)
app.command()(cli_catalog.clusters)


@app.command()
@flags_of(RunOptions, "options", names={"learning_rate": ["--lr"], "timeout_s": ["--timeout"]})
def run(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN.yaml", help="what to train, from suggest -o")],
    more_data: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE_OR_FOLDER]...", hidden=True)
    ] = None,
    *,
    data: Annotated[list[Path], typer.Option(metavar="FILE_OR_FOLDER...", help="the text to train on")],
    options: RunOptions,
    as_json: JsonFlag = False,
) -> None:
    """Train a plan, then print planned beside measured.

    On this machine's ranks, or on this node's.
    """
    from seqplan import profiles, render
    from seqplan.planner.adopted_plan import RUNTIME, adopted, up_to_date
    from seqplan.planner.plan import load_plan, require_fit
    from seqplan.runtime.launch import launch

    plan = load_plan(plan_file, profiles.load_implementation)
    ours = profiles.load_implementation(RUNTIME)
    if plan.implementation == RUNTIME:
        plan, changed = up_to_date(plan, ours)
        render.tell("warning", changed)
    else:
        plan, re_made = adopted(plan, ours)
        render.tell("warning", [re_made])
    if options.device != "cpu":  # whose memory is asked for itself
        require_fit(plan, ours)
    result = launch(plan, [*data, *(more_data or [])], options)
    if result.exit_code:
        raise typer.Exit(result.exit_code)
    if result.summary is not None:  # rank 0 ran on this node
        if as_json:
            render.show_json(result.summary)
        else:
            from seqplan.runtime.progress import summary_table

            render.show([summary_table(result.summary)])
