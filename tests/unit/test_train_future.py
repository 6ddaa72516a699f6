"""Futures of a training backend: at once, in order, and no error vanishes."""

import asyncio
import logging
import threading
import time

import pytest

from rollstream.training.backends.future import TrainFuture, Worker


class Undone:
    """Counts how often a worker had to take something back."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


@pytest.fixture
def undone():
    return Undone()


@pytest.fixture
def worker(undone):
    worker = Worker(undone)
    yield worker
    worker.close()


def fail(text="of its own"):
    raise ArithmeticError(text)


def test_a_future_is_there_before_its_work_is_done_and_results_come_in_order(worker):
    may_go_on, done = threading.Event(), []

    def first():
        assert may_go_on.wait(20)
        done.append("first")
        return 1

    futures = [worker.submit("first", first), worker.submit("second", lambda: done.append("second"))]
    assert [future.done() for future in futures] == [False, False]
    may_go_on.set()

    async def both():
        return await futures[0].result(), await futures[1]

    assert asyncio.run(both()) == (1, None)
    assert done == ["first", "second"]


def test_a_result_can_be_awaited_more_than_once(worker):
    future = worker.submit("work", lambda: 7)

    async def often():
        return [await future, await future.result(), *await asyncio.gather(future.result(), future.result())]

    assert asyncio.run(often()) == [7, 7, 7, 7]


def test_an_error_reaches_who_awaits_and_work_that_is_asked_for_after_that_is_done(worker, undone):
    with pytest.raises(ArithmeticError, match="of its own"):
        asyncio.run(worker.submit("bad", fail).result())
    assert undone.times == 1
    assert asyncio.run(worker.submit("good", lambda: "done").result()) == "done"


def test_what_was_asked_for_before_an_error_was_seen_is_not_done(worker):
    done = []
    bad = worker.submit("forward_backward", fail)
    asked_before = worker.submit("optim_step", lambda: done.append("step"))

    async def both():
        with pytest.raises(ArithmeticError):
            await bad
        with pytest.raises(ArithmeticError) as raised:
            await asked_before
        return raised.value.__notes__

    notes = asyncio.run(both())
    assert done == []
    assert len(notes) == 1
    assert "forward_backward" in notes[0]


def test_an_error_that_nobody_awaited_stops_what_follows_until_somebody_sees_it(worker):
    done = []
    worker.submit("dropped", fail)
    worker.submit("also dropped", lambda: done.append("early"))
    with pytest.raises(ArithmeticError):
        asyncio.run(worker.submit("awaited", lambda: done.append("late")).result())
    asyncio.run(worker.submit("after", lambda: done.append("after")).result())
    assert done == ["after"]


def test_a_wait_has_a_bound_and_neither_its_end_nor_a_cancelled_wait_ends_the_work(worker):
    may_go_on = threading.Event()
    future = worker.submit("slow", lambda: may_go_on.wait(20))

    async def wait_thrice():
        with pytest.raises(TimeoutError, match=r"0\.01 s"):
            await future.result(timeout_seconds=0.01)
        task = asyncio.create_task(future.result())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_go_on.set()
        return await future.result(timeout_seconds=20)

    assert asyncio.run(wait_thrice()) is True


def test_closing_ends_the_thread_and_cancels_what_has_not_begun():
    worker = Worker(Undone())
    has_begun, may_end = threading.Event(), threading.Event()
    began: TrainFuture[str] = worker.submit("begun", lambda: has_begun.set() or (may_end.wait(20) and "ended"))
    waiting = worker.submit("waiting", lambda: None)
    assert has_begun.wait(20)
    closing = threading.Thread(target=worker.close)
    closing.start()
    while not waiting.done():
        time.sleep(0.001)
    may_end.set()
    closing.join(20)
    assert asyncio.run(began.result()) == "ended"
    with pytest.raises(RuntimeError, match="closed before"):
        asyncio.run(waiting.result())
    assert [thread for thread in threading.enumerate() if thread.name.startswith("training-backend")] == []
    with pytest.raises(RuntimeError, match="optim_step was asked of a backend that is closed"):
        worker.submit("optim_step", lambda: None)


def test_an_error_that_nobody_saw_until_the_end_is_logged(caplog):
    worker = Worker(Undone())
    worker.submit("forward_backward", fail)
    with caplog.at_level(logging.ERROR):
        worker.close()
    assert "forward_backward failed, and nobody awaited it" in caplog.text
    assert "of its own" in caplog.text
