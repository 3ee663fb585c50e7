"""From what was typed to a Question: sizes such as 4k, names and files, and mistakes that only show here.

A model given as --cluster (and the reverse), or a batch that can only be a count of tokens: each file or
number is fine by itself, so no reader further in can see them.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from seqplan import profiles
from seqplan.cli_options import Ask, build
from seqplan.planner.cluster_spec import ClusterSpec, DeviceSpec
from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import AXES, LARGEST_COUNT, Layout, parse_degrees
from seqplan.planner.layout_defaults import parse_layout
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.plan import load_plan, plan_warnings, trainer_of
from seqplan.planner.question import Pins, Question
from seqplan.planner.reading.counts import parse_count
from seqplan.planner.reading.typed_form import flag_name
from seqplan.planner.score_cases import Loaders
from seqplan.planner.timing.overlaps import without
from seqplan.planner.train_spec import TrainSpec
from seqplan.profiles.link_doubts import link_doubts
from seqplan.profiles.parts import load_device

LARGEST_BATCH_TOKENS = 2**28
"""Tokens a step beyond which a batch is taken for a slip: 16 times the largest of Llama 3 405B
(16 Mi tokens: arXiv 2407.21783, table 4)."""

LAYOUT_EXAMPLE = "--layout dp2,pp1,tp4,sp8"


@dataclass
class Asked:
    """The question, and what there is to say about how it was read."""

    question: Question
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_question(model: str, ask: Ask) -> Asked:
    """The planning problem from MODEL and the flags."""
    needed = {
        "--cluster": ask.cluster,
        "--seq-len": ask.seq_len,
        "--global-batch-size": ask.global_batch_size,
    }
    missing = [flag for flag, typed in needed.items() if typed is None]
    if missing:
        raise SeqplanError(f"missing {', '.join(missing)}.", "Say what to plan for; see --help.")
    assert ask.cluster is not None
    notes: list[str] = []
    seq_len, global_batch_size = read_counts(
        {flag: str(typed) for flag, typed in needed.items() if flag != "--cluster"}, notes
    )
    train = build(
        TrainSpec,
        {
            "seq_len": seq_len,
            "global_batch_size": global_batch_size,
            "precision": ask.precision,
            "optimizer": ask.optimizer,
            "gradient_bytes": ask.gradient_bytes,
            "hidden_dropout": ask.hidden_dropout,
            "attention_dropout": ask.attention_dropout,
            "chunked_head": ask.chunked_head,
            "headroom_fraction": ask.headroom,
        },
        {"headroom_fraction": "--headroom"},
    )
    spec, model_notes = read_model(model)
    cluster = read_cluster(ask.cluster)
    gpus = read_gpus(cluster, ask)
    trainer = profiles.load_implementation(ask.implementation)
    if ask.no_overlap:
        trainer = trainer.model_copy(update={"time": without(trainer.time, ask.no_overlap)})
        notes.append(f"Not counted on (--no-overlap): {', '.join(ask.no_overlap)}")
    question = Question(
        model=spec,
        cluster=cluster.for_gpus(gpus),
        gpus=gpus,
        train=train,
        implementation=trainer,
        full_cluster=cluster if cluster.cores_per_node is None else None,
    )
    warnings = [*batch_warnings(train), *link_doubts(cluster)]
    return Asked(question, [*notes, *model_notes, *beyond_profile(cluster, gpus)], warnings)


def read_layout(model: str, typed: str, ask: Ask, pins: Pins) -> tuple[Asked, Layout]:
    """The question, and a layout typed as dp2,pp1,tp4,sp8; its own size is the default of --gpus."""
    given = parse_degrees(typed) | pins.given()
    world_size = math.prod(degree for axis in AXES if isinstance(degree := given.get(axis, 1), int))
    if ask.gpus is not None or ask.nodes is not None or world_size < 1:
        asked = read_question(model, ask)
    else:
        try:
            asked = read_question(model, ask.model_copy(update={"gpus": world_size}))
        except (
            SeqplanError
        ):  # no whole nodes: against the whole cluster, where the product is one of the reasons
            asked = read_question(model, ask)
    return asked, parse_layout(typed, asked.question, pins.given())


def read_plan(path: Path, ask: Ask, pins: Pins) -> tuple[Asked, Layout]:
    """The question and the layout of a plan file, which fixes all that the flags could say."""
    if _is_model(path):
        raise SeqplanError(
            f"{path} is a model; to explain one of its layouts, say which.",
            f"Add {LAYOUT_EXAMPLE}, with --cluster, --seq-len and --global-batch-size; or give a plan file.",
        )
    if not path.exists():
        raise SeqplanError(
            f"{path}: no such plan file, nor a built-in model.",
            f"Give a plan file, from suggest -o; or MODEL with {LAYOUT_EXAMPLE}.",
        )
    defaults = Ask()
    changed = [name for name in Ask.model_fields if getattr(ask, name) != getattr(defaults, name)]
    given = [flag_name(name) for name in (*changed, *pins.given())]
    if given:
        raise SeqplanError(
            f"{', '.join(given)} beside a plan file would change what it says.",
            f"To explain another layout give MODEL and {LAYOUT_EXAMPLE}.",
        )
    plan = load_plan(path)
    trainer = trainer_of(plan, path, profiles.load_implementation)
    return Asked(plan.question(trainer), warnings=list(plan_warnings(plan, trainer))), plan.layout


def _is_model(path: Path) -> bool:
    """Whether MODEL could be this: a built-in name, a folder with a config.json, or a file that is one."""
    try:
        profiles.load_model(str(path))
    except SeqplanError:
        return False
    return True


def read_count(flag: str, typed: str, notes: list[str]) -> int:
    """A whole number from 1: digits, grouped as 131_072 if you like, or 4k (= 4096), which is said."""
    read = parse_count(typed)
    if read is None:
        try:
            value = float(typed)
        except ValueError:
            value = 0.0
        hint = f"write {value:.0f}" if 1 <= value < 1e15 and value.is_integer() else "write it as 4096 or 4k"
        raise SeqplanError(f"{flag} {typed} is not a whole number from 1;", f"{hint}.")
    number, suffix = read
    if not 1 <= number <= LARGEST_COUNT:
        raise SeqplanError(f"{flag} {typed} must be at least 1 and at most 2^40.")
    if suffix:
        notes.append(f"{flag} {typed} is read as {number}")
    return number


def read_counts(typed: dict[str, str], notes: list[str]) -> list[int]:
    """Several of them, all wrong ones told at once."""
    numbers, wrong = [], []
    for flag, value in typed.items():
        try:
            numbers.append(read_count(flag, value, notes))
        except SeqplanError as error:
            wrong.append(str(error))
    if wrong:
        raise SeqplanError(" ".join(wrong))
    return numbers


def read_gpus(cluster: ClusterSpec, ask: Ask) -> int:
    """The world size from --gpus, from --nodes, or the whole cluster."""
    if ask.nodes is None:
        return ask.gpus or cluster.num_nodes * cluster.gpus_per_node
    gpus = ask.nodes * cluster.gpus_per_node
    if ask.gpus not in (None, gpus):
        raise SeqplanError(
            f"--nodes {ask.nodes} of {cluster.name} are {gpus} devices, and --gpus says {ask.gpus}.",
            "Give one of the two.",
        )
    return gpus


def read_model(name: str) -> tuple[ModelSpec, list[str]]:
    """MODEL and its reader's notes; a cluster in its place is seen."""
    try:
        return profiles.load_model(name)
    except SeqplanError as error:
        raise _swapped(
            name, "MODEL", "a cluster: give it as --cluster", profiles.load_cluster, error
        ) from None


def read_cluster(name: str) -> ClusterSpec:
    """--cluster; a model in its place is seen."""
    try:
        return profiles.load_cluster(name)
    except SeqplanError as error:
        raise _swapped(name, "--cluster", "a model: give it as MODEL", profiles.load_model, error) from None


def known_device(called: str) -> DeviceSpec | None:
    """The one built-in device whose name's words are all in what torch calls it ("NVIDIA L40S"), or None."""
    words = set(re.split(r"[^a-z0-9]+", called.lower()))
    found = [name for name in profiles.device_names() if set(name.split("-")) <= words]
    return load_device(found[0]) if len(found) == 1 else None


def loaders() -> Loaders:
    """How the cases of `score` find their models, clusters and trainers."""
    from seqplan.planner.hf_config import read_model as read_config  # other commands start without it

    return Loaders(
        model=lambda name: profiles.load_model(name)[0],
        hf_config=lambda config: read_config(config).spec,
        cluster=profiles.load_cluster,
        implementation=profiles.load_implementation,
    )


@contextmanager
def open_lines(name: str) -> Iterator[Iterable[str]]:
    """The lines of a file, or of stdin for `-`; a byte that is no text fails its own line only."""
    if name == "-":
        yield (line.decode("utf-8", "replace") for line in sys.stdin.buffer)
        return
    path = Path(name)
    if path.is_dir():
        raise SeqplanError(f"{path} is a folder.", "Give a file with one JSON object a line, or - for stdin.")
    if not path.exists():
        raise SeqplanError(
            f"{path}: no such file.", "Give a file with one JSON object a line, or - for stdin."
        )
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        yield file


def _swapped(
    name: str, place: str, instead: str, other: Callable[[str], object], error: SeqplanError
) -> SeqplanError:
    """The error itself, or a better one where the other reader accepts what was given."""
    try:
        other(name)
    except SeqplanError:
        return error
    return SeqplanError(f"{place} {name} is {instead}.", "MODEL and --cluster look swapped.")


def beyond_profile(cluster: ClusterSpec, gpus: int) -> list[str]:
    """More nodes than the profile lists: a plan all the same, but nobody said that they exist."""
    nodes = -(-gpus // cluster.gpus_per_node)
    if cluster.cores_per_node is not None or nodes <= cluster.num_nodes:
        return []
    listed = f"{cluster.num_nodes} node{'s' * (cluster.num_nodes > 1)}"
    return [f"{cluster.name} lists {listed}, and {nodes} are planned for, with the same links between them."]


def batch_warnings(train: TrainSpec) -> list[str]:
    """A batch size that can only be meant in tokens."""
    tokens = train.global_batch_size * train.seq_len
    if tokens <= LARGEST_BATCH_TOKENS:
        return []
    meant = train.global_batch_size // train.seq_len
    hint = f"; if {train.global_batch_size:,} are tokens, set --global-batch-size {meant}" if meant else ""
    return [
        f"--global-batch-size counts sequences: {train.global_batch_size:,} of {train.seq_len:,} tokens "
        f"are {tokens / 1e9:,.1f} G tokens a step{hint}"
    ]
