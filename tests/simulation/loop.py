"""An event loop whose time is virtual: real asyncio code, one thing at a time, the same each time.

Processes are told apart by a context variable. One that is killed is simply never run again: no ``finally``, no
``except``, as after SIGKILL. What the product does in threads (``asyncio.to_thread``) is done in threads here too, but
one at a time: a baton goes to the thread and comes back when it is done or waits for the network.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

TURNS_MAX = 200_000
"""Callbacks at one moment: more of them means that something goes round in circles."""
INLINE_SECONDS = 0.001
"""How long a reading thread of the node takes."""


class Process:
    """Something that can be killed: everything that runs in its context."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return self.name


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
OUTSIDE = contextvars.Context()
"""For what happens to processes: no process of its own, so that nothing ends it."""


class Stuck(Exception):
    """Nothing will ever happen any more, or everything happens at once."""


class SeededTask(asyncio.Task):
    """A task whose place in a set does not depend on its address."""

    numbers = itertools.count()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.number = next(SeededTask.numbers)
        context = options.get("context")
        self.process = PROCESS.get() if context is None else context.get(PROCESS)
        super().__init__(*arguments, **options)

    def __hash__(self) -> int:
        return self.number


class _Selector:
    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        self._loop.jump(timeout)
        return []

    def close(self) -> None:
        """There is nothing to give back."""


class VirtualLoop(asyncio.base_events.BaseEventLoop):
    """Time passes only when nothing is left to do, and then it jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Selector(self)
        self._virtual = 0.0
        self._turns = 0
        self.frozen: list[SeededTask] = []
        self.errands: set[Errand] = set()
        self.tasks: dict[int, SeededTask] = {}
        SeededTask.numbers = itertools.count()
        self.set_task_factory(self._task)

    def _task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> SeededTask:
        task = SeededTask(work, loop=loop, **options)
        self.tasks[task.number] = task
        task.add_done_callback(self._over)
        return task

    def _over(self, task: SeededTask) -> None:
        self.tasks.pop(task.number, None)

    def time(self) -> float:
        return self._virtual

    def jump(self, timeout: float | None) -> None:
        self._turns += 1
        if timeout is None:
            raise Stuck("nothing will ever happen any more")
        if timeout > 0:
            self._turns = 0
            self._virtual = max(self._virtual, self._scheduled[0]._when) if self._scheduled else self._virtual + timeout
        elif self._turns > TURNS_MAX:
            raise Stuck(f"{TURNS_MAX} turns without any time passing")

    def _process_events(self, events: list[Any]) -> None:
        """There are no sockets."""

    def _write_to_self(self) -> None:
        """Nothing sleeps that would have to be woken."""

    # --- processes ---

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        handle = super().call_soon(callback, *args, context=context)
        return self._unless_dead(handle)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        self._unless_dead(handle)
        return handle

    def _unless_dead(self, handle: Any) -> Any:
        process = handle._context.get(PROCESS)
        if process is not None and not process.alive:
            handle.cancel()
        return handle

    def spawn(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start something in a process."""
        return process.context.run(self.create_task, work)

    def kill(self, process: Process) -> None:
        """Nothing of the process runs any more."""
        process.alive = False
        for handle in (*self._ready, *self._scheduled):
            if handle._context.get(PROCESS) is process:
                handle.cancel()
        for task in list(self.tasks.values()):
            if task.process is process:
                task._log_destroy_pending = False
                # Kept until the end: a coroutine that is collected runs its ``finally``.
                self.frozen.append(task)

    async def unwind(self) -> None:
        """At the very end: let everything run to its end, so that nothing is left lying about."""
        for errand in sorted(self.errands, key=lambda errand: errand.number):
            errand.kill()
        for task in self.frozen:
            coroutine = task.get_coro()
            with suppress(Exception):  # what is killed for good has nothing to say any more
                coroutine.close()
            self.tasks.pop(task.number, None)
        mine = asyncio.current_task()
        for _ in range(100):
            left = [task for task in self.tasks.values() if task is not mine and not task.done()]
            if not left:
                return
            for task in left:
                task.cancel()
            await asyncio.sleep(0.1)
        raise Stuck(f"tasks that do not end: {left}")

    # --- threads ---

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()
        if executor is None:
            errand = Errand(self, lambda: func(*args), future)
            self.call_soon(errand.resume, context=errand.context)
            return future

        def run() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Killed:
                return
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(INLINE_SECONDS, run)
        return future


class Killed(BaseException):
    """The process of this thread is gone."""


_current = threading.local()


class Errand:
    """One ``to_thread``: a thread that runs only while it has the baton."""

    numbers = itertools.count()

    def __init__(self, loop: VirtualLoop, work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self.loop = loop
        self.context = contextvars.copy_context()
        self.number = next(Errand.numbers)
        self._work = work
        self._future = future
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._start: Callable[[Callable[[], None]], None] | None = None
        self._killed = self._done = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        loop.errands.add(self)

    def __hash__(self) -> int:
        return self.number

    def resume(self) -> None:
        """Hand over the baton, and take it back."""
        if self._done:
            return
        self._go.release()
        self._back.acquire()
        if not self._done:
            start, self._start = self._start, None
            assert start is not None, "a thread gives the baton back when it waits or is done"
            start(lambda: self.loop.call_soon(self.resume, context=self.context))
            return
        self.loop.errands.discard(self)
        self._thread.join()
        if self._future.cancelled() or self._killed:
            return
        if self._error is None:
            self._future.set_result(self._result)
        else:
            self._future.set_exception(self._error)

    def wait(self, start: Callable[[Callable[[], None]], None]) -> None:
        """From the thread: give the baton back; ``start`` runs on the loop and is told whom to call to go on."""
        if self._killed:
            raise Killed
        self._start = start
        self._back.release()
        self._go.acquire()
        if self._killed:
            raise Killed

    def kill(self) -> None:
        """End the thread, by an exception where it waits."""
        self._killed = True
        self.resume()

    def _run(self) -> None:
        self._go.acquire()
        _current.errand = self
        try:
            if not self._killed:
                self._result = self._work()
        except (Exception, Killed) as error:
            self._error = error
        self._done = True
        self._back.release()


def wait(start: Callable[[Callable[[], None]], None]) -> None:
    """From an errand: wait for something that happens on the loop."""
    errand: Errand = _current.errand
    errand.wait(start)


class BatonLock:
    """A lock among errands: who waits for it gives the baton back."""

    def __init__(self) -> None:
        self._held = False
        self._waiting: deque[Callable[[], None]] = deque()

    def __enter__(self) -> None:
        while self._held:
            wait(self._waiting.append)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False
        if self._waiting:
            self._waiting.popleft()()
