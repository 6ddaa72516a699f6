"""The scorer's buffer is full by records or by bytes, whichever comes first. Before that Faust stops fetching."""

from types import SimpleNamespace
from typing import Any

from mode.utils.queues import FlowControlEvent

from rollstream.scorer.app import MAX_BUFFER_BYTES, BoundedBuffer
from tests.harness.waits import in_a_loop

MEGABYTE = 2**20


def an_event(num_bytes: int) -> Any:
    return SimpleNamespace(message=SimpleNamespace(value=bytes(num_bytes)))


def a_buffer() -> BoundedBuffer:
    """A buffer of the running event loop."""
    return BoundedBuffer(maxsize=2048, flow_control=FlowControlEvent())


def fill(buffer: BoundedBuffer, num_bytes: int) -> tuple[int, int]:
    """Put events in as Faust does: how many before it stops fetching, and how many before the buffer is full."""
    stopped_after: list[int] = []
    count = 0
    while not buffer.full():
        buffer.put_nowait_enhanced(
            an_event(num_bytes),
            on_pressure_high=lambda: stopped_after.append(count),  # noqa: B023
            on_pressure_drop=lambda: None,
        )
        count += 1
    return stopped_after[0], count


@in_a_loop
async def test_large_records_fill_it_by_their_bytes_and_small_ones_by_their_number() -> None:
    stopped_after, count = fill(a_buffer(), 7 * MEGABYTE)
    assert stopped_after < count
    assert MAX_BUFFER_BYTES <= count * 7 * MEGABYTE < MAX_BUFFER_BYTES + 7 * MEGABYTE
    assert fill(a_buffer(), 1000) == (1638, 2048)


@in_a_loop
async def test_it_has_room_again_when_records_are_taken_or_cleared() -> None:
    buffer = a_buffer()
    fill(buffer, 7 * MEGABYTE)
    for _ in range(3):
        await buffer.get()
    assert not buffer.full()
    fill(buffer, 7 * MEGABYTE)
    buffer.clear()
    assert buffer.qsize() == 0
    assert buffer.empty()
