"""How many bytes the states of one parameter take, and what they leave for the rest: read off the inventory.

16 or 18 bytes is where estimates of others differ first (is there a copy in 16 bits beside fp32 weights?), so
the number is printed with every layout that is shown.
"""

from __future__ import annotations

from seqplan.planner.choosing.layout_table import from_layout
from seqplan.planner.layout import Layout
from seqplan.planner.memory.symbols import layout_values
from seqplan.planner.question import Question
from seqplan.planner.results import MemoryEstimate

STATE_KINDS = ("weights", "gradients", "optimizer")

GIB = 2**30

_ONE_PARAMETER = {"P": 1.0, "Pn": 1.0, "Pl": 0.0, "Pln": 0.0, "Pe": 0.0, "Ph": 0.0, "Pw": 0.0}
"""One parameter of the stage, held once by the ranks that share it; nothing gathered or in work."""


def bytes_per_parameter(question: Question, layout: Layout) -> dict[str, float]:
    """Bytes of weights, gradients and optimizer for one parameter, by the trainer's inventory."""
    values = layout_values(question, from_layout(layout, question.train))
    values |= {**_ONE_PARAMETER, "layers": 1, "first": True, "last": True}
    found = dict.fromkeys(STATE_KINDS, 0.0)
    for row in question.implementation.states:
        if row.kind in found:
            size = row.size_bytes(values)
            found[row.kind] += float(size if not hasattr(size, "__len__") else size[0])
    return found


def states_note(question: Question, layout: Layout, memory: MemoryEstimate) -> str:
    """Bytes a parameter, over how many ranks they are shared, and what is left on the fullest rank."""
    parts = bytes_per_parameter(question, layout)
    shown = ", ".join(f"{kind} {size:g}" for kind, size in parts.items())
    ranks = layout.zero_shard_size or layout.dp * layout.sp
    shared = f" over {ranks} ranks" if layout.zero_stage else ""
    worst = memory.stages[memory.worst_stage]
    held = sum(worst.by_kind[kind] for kind in STATE_KINDS)
    left = memory.limit_bytes - held
    rest = f"leaves {_shown(left)} for the rest" if left > 0 else f"is {_shown(-left)} too much by itself"
    return (
        f"States take {sum(parts.values()):g} bytes a parameter ({shown}) with zero_stage={layout.zero_stage}"
        f"{shared}: {_shown(held)} on stage {worst.stage} at its fullest, which {rest}."
    )


def _shown(size_bytes: float) -> str:
    """GiB; MiB where GiB would show no figures."""
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= 0.05 * GIB else f"{size_bytes * 1024 / GIB:.1f} MiB"
