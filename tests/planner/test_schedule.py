"""The 1F1B action lists: complete, bounded in flight, and free of deadlock under rendezvous."""

from __future__ import annotations

from collections import Counter

import pytest

from seqplan.planner.schedule import Action, Compute, Exchange, computations, forward_only, one_f_one_b

Posted = tuple[str, int, int, int]
"""(kind, micro-batch, sender, receiver): the two ends of one message post the same."""

SHAPES = [(p, m) for p in range(1, 9) for m in range(p, 21)]


def messages(exchange: Exchange, stage: int) -> set[Posted]:
    found = set()
    for transfer in exchange.transfers:
        ends = {
            "send_forward": ("activation", stage, stage + 1),
            "recv_forward": ("activation", stage - 1, stage),
            "send_backward": ("gradient", stage, stage - 1),
            "recv_backward": ("gradient", stage + 1, stage),
        }[transfer.direction]
        found.add((ends[0], transfer.micro_batch, ends[1], ends[2]))
    return found


def play(lists: list[list[Action]]) -> list[Compute]:
    """Run all stages; an Exchange completes only when the other end of each of its messages is posted too.

    That is gloo's and NCCL's large-message behaviour. Returns the computations in the order they ran;
    fails when every unfinished stage waits.
    """
    place = [0] * len(lists)
    done: list[Compute] = []
    finished_by: list[set[Posted]] = [set() for _ in lists]
    while any(at < len(actions) for at, actions in zip(place, lists, strict=True)):
        moved = False
        waiting = [
            messages(action, stage)
            if place[stage] < len(actions) and isinstance(action := actions[place[stage]], Exchange)
            else set()
            for stage, actions in enumerate(lists)
        ]
        for stage, actions in enumerate(lists):
            if place[stage] >= len(actions):
                continue
            action = actions[place[stage]]
            if isinstance(action, Compute):
                done.append(action)
            else:
                for message in waiting[stage]:
                    other = message[3] if message[2] == stage else message[2]
                    if message not in waiting[other] and message not in finished_by[other]:
                        break
                else:
                    finished_by[stage] |= waiting[stage]
                    place[stage] += 1
                    moved = True
                continue
            place[stage] += 1
            moved = True
        assert moved, f"deadlock at {place} of {[len(actions) for actions in lists]}"
    return done


@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_no_deadlock_and_both_ends_agree_on_every_message(p: int, m: int) -> None:
    lists = [one_f_one_b(stage, p, m) for stage in range(p)]
    sent: Counter[Posted] = Counter()
    for stage, actions in enumerate(lists):
        for action in actions:
            if isinstance(action, Exchange):
                sent.update(messages(action, stage))
    # Every activation crosses every boundary once, every gradient too; both ends have it in their list.
    assert sum(sent.values()) == 2 * 2 * (p - 1) * m
    assert set(sent.values()) <= {2}
    assert len(play(lists)) == 2 * p * m


@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_every_micro_batch_goes_forward_and_back_once_within_its_bound(p: int, m: int) -> None:
    for stage in range(p):
        order = computations(stage, p, m)
        assert Counter(order) == Counter(
            Compute(kind, i) for kind in ("forward", "backward") for i in range(m)
        )
        in_flight, most = 0, 0
        for compute in order:
            in_flight += 1 if compute.kind == "forward" else -1
            most = max(most, in_flight)
        # PipeDream-flush (Narayanan et al. 2104.04473, section 2.2.1): at most p - stage.
        assert most == min(p - stage, m)
        for kind in ("forward", "backward"):
            assert [c.micro_batch for c in order if c.kind == kind] == list(range(m))
        assert [a for a in one_f_one_b(stage, p, m) if isinstance(a, Compute)] == order


def test_data_is_there_before_it_is_used() -> None:
    for stage in range(4):
        arrived: set[tuple[str, int]] = set()
        computed: set[tuple[str, int]] = set()
        for action in one_f_one_b(stage, 4, 6):
            if isinstance(action, Compute):
                if action.kind == "forward" and stage > 0:
                    assert ("recv_forward", action.micro_batch) in arrived
                if action.kind == "backward":
                    assert ("forward", action.micro_batch) in computed
                    assert stage == 3 or ("recv_backward", action.micro_batch) in arrived
                computed.add((action.kind, action.micro_batch))
                continue
            for transfer in action.transfers:
                if transfer.direction.startswith("send"):
                    made = transfer.direction.removeprefix("send_")
                    assert (made, transfer.micro_batch) in computed
                arrived.add((transfer.direction, transfer.micro_batch))


def test_sending_before_receiving_would_deadlock_and_the_player_sees_it() -> None:
    """The naive order of two neighbours, each sending first: the check above must be able to fail."""
    lists = [one_f_one_b(stage, 2, 4) for stage in range(2)]
    split: list[list[Action]] = []
    for actions in lists:
        naive: list[Action] = []
        for action in actions:
            if isinstance(action, Exchange):
                sends = [t for t in action.transfers if t.direction.startswith("send")]
                rest = [t for t in action.transfers if not t.direction.startswith("send")]
                naive += [Exchange((t,)) for t in (*sends, *rest)]
            else:
                naive.append(action)
        split.append(naive)
    with pytest.raises(AssertionError, match="deadlock"):
        play(split)


@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 1), (4, 2), (8, 5)])
def test_evaluation_passes_every_micro_batch_through_all_stages(p: int, m: int) -> None:
    lists = [forward_only(stage, p, m) for stage in range(p)]
    assert Counter(play(lists)) == Counter({Compute("forward", i): p for i in range(m)})
