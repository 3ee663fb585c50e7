"""What a simulation takes for the truth: operators replayed or remembered, a GPU's kernels on a CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from seqplan.runtime.ring_attention import ring_attention
from seqplan.runtime.simulation.kernel_device import (
    DIFFERENCES,
    differences_of,
    kernels_of,
    layer_norm,
    rms_norm,
)
from seqplan.runtime.simulation.simulate_replay import Operators
from seqplan.runtime.simulation.simulate_shapes import KnownResults
from seqplan.runtime.simulation.simulate_stage import fake_group, operator_bodies
from seqplan.runtime.simulation.simulate_tracker import Change, Event, Tracker

ROWS, SIZE = 8, 64


def test_a_replayed_attention_is_as_it_ran() -> None:
    """The same storages come and go, in the same order and of the same kinds, forward and backward."""
    tracker = Tracker(Operators(operator_bodies()))

    def attend() -> list[Event]:
        start = len(tracker.events)
        q, k, v = (torch.empty(1, 512, 4, 32, requires_grad=True) for _ in range(3))
        out = ring_attention(q, k, v, group=torch.distributed.group.WORLD, causal=True, head_groups=2)
        out.backward(torch.empty_like(out))
        return tracker.events[start:]

    with fake_group(3, 4), kernels_of("cpu"), FakeTensorMode(), tracker.running():
        ran, replayed = attend(), attend()
    changes = [
        [(change.size_bytes, change.record.site, change.record.kind) for change in events]
        for events in ([event for event in each if isinstance(event, Change)] for each in (ran, replayed))
    ]
    assert len(changes[0]) > 50
    assert changes[0] == changes[1]


OPERATIONS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x @ x.t(),
    lambda x: x.t(),
    lambda x: x[2:, 1:5],
    lambda x: x.unsqueeze(1).expand(-1, 3, -1),
    lambda x: x[4:].view(-1),
    lambda x: x.to(torch.bfloat16),
    lambda x: x.sum(1),
    lambda x: x.mul_(2.0),
    lambda x: torch.softmax(x, -1),
    lambda x: x.t().contiguous(),
    lambda x: x * 0.5,
    lambda x: x > 0,
]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_remembered_result_looks_like_the_first(operation: Callable[[Tensor], Tensor]) -> None:
    """Also of another tensor that lies at another place of its storage, and shares memory where it should."""
    plain, tracker = FakeTensorMode(), Tracker(Operators({}))
    with plain:
        expected = [operation(torch.empty(16, 16)[place:].view(-1)[: 16 * 8].view(8, 16)) for place in (0, 4)]
    with FakeTensorMode(), tracker.running():
        found = []
        for place in (0, 0, 4):
            whole = torch.empty(16, 16)
            result = operation(whole[place:].view(-1)[: 16 * 8].view(8, 16))
            shared = result.untyped_storage()._cdata == whole.untyped_storage()._cdata
            found.append((looks(result), shared))
    assert found[0] == found[1]
    assert [found[1][0], found[2][0]] == [looks(each) for each in expected]
    assert found[2][1] == found[0][1]


def looks(x: Tensor) -> tuple[object, ...]:
    return tuple(x.shape), x.stride(), x.dtype, x.storage_offset(), x.untyped_storage().nbytes()


def test_results_that_depend_on_values_are_not_remembered() -> None:
    key = KnownResults.key
    with FakeTensorMode():
        x = torch.empty(4, dtype=torch.int64)
        assert key(torch.ops.aten.nonzero.default, (x,), {}) is None
        assert key(torch.ops.aten.split.Tensor, (x, 2), {}) is None
        assert key(torch.ops.aten.add.Tensor, (x, x), {}) is not None
    assert key(torch.ops.aten.add.Tensor, (torch.empty(4), 1), {}) is None


def kept_bytes(function: Callable[[], Tensor], known: list[Tensor]) -> int:
    """What autograd keeps besides the tensors that are known."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function()
    return sum(size for place, size in sizes.items() if place not in {x.data_ptr() for x in known})


def test_norms_keep_what_the_kernels_of_the_device_do() -> None:
    """CUDA: one float32 a row for RMSNorm, two for LayerNorm, whatever the dtype.

    CPU, bfloat16 (torch's own functions, run here): float32 forms of the input for RMSNorm, two bfloat16
    a row for LayerNorm.
    """
    x = torch.randn(ROWS, SIZE, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.ones(SIZE, dtype=torch.bfloat16, requires_grad=True)

    def kept(device: str, function: Callable[[], Tensor]) -> int:
        with kernels_of(device):
            return kept_bytes(function, [x, weight])

    def rms() -> Tensor:
        return rms_norm(x, SIZE, weight, 1e-5)

    def layer() -> Tensor:
        return layer_norm(x, SIZE, weight, weight, 1e-5)

    assert kept("cuda", rms) == ROWS * 4
    assert kept("cuda", layer) == ROWS * 2 * 4
    assert kept("cpu", layer) == ROWS * 2 * 2
    assert kept("cpu", rms) > ROWS * SIZE * 4


def test_statistics_of_a_gpu_are_torchs_own() -> None:
    """The shape functions of torch's operators, asked for a CUDA tensor."""
    with FakeTensorMode():
        x, weight = (torch.empty(n, dtype=torch.bfloat16, device="cuda") for n in ((ROWS, SIZE), (SIZE,)))
        _, mean, deviation = torch.ops.aten.native_layer_norm(x, [SIZE], weight, weight, 1e-5)
        _, scale = torch.ops.aten._fused_rms_norm(x, [SIZE], weight, 1e-5)
    for statistic in (mean, deviation, scale):
        assert (statistic.dtype, statistic.shape) == (torch.float32, (ROWS, 1))


def test_log_sum_exp_is_float32_on_both_devices() -> None:
    """Of flash attention in bfloat16: a number a row and head; the GPU's random state is small."""
    with FakeTensorMode():
        q = torch.empty(1, 2, SIZE, 32, dtype=torch.bfloat16)
        _, on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.0, True)
        _, on_gpu, *_, state, _, _ = torch.ops.aten._scaled_dot_product_flash_attention(
            *(torch.empty(q.shape, dtype=q.dtype, device="cuda") for _ in range(3)), 0.0, True, False
        )
    for lse in (on_cpu, on_gpu):
        assert (lse.dtype, lse.numel()) == (torch.float32, 2 * SIZE)
    assert state.nbytes <= 16


def test_differences_name_their_source() -> None:
    assert all(each.source.startswith("torch ") for each in DIFFERENCES)
    assert [text.split(" on a GPU ")[0] for text in differences_of("rmsnorm", "flash")] == [
        "RMSNorm",
        "flash attention",
    ]
