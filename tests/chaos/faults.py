"""The faults, and the injector that chooses among them by the seed."""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from scenario_client import Client

from chaos.backends_under_test import BackendUnderTest, ProxiedServer
from chaos.event_log import EventLog
from chaos.processes_under_test import FAKETIME, LEASE, ManagedProcess, ProcessGroup
from chaos.proxy import ConnectionState
from chaos.publish_confirmations import all_recorded, published
from chaos.server_processes import Program
from chaos.transport_queues import LANES
from umbel.backends.transport import Lane
from umbel.errors import Unavailable, UnknownJob

Later = Callable[[], None]
Known = dict[str, tuple[float, Callable[[], bool]]]

_DELETED = "queue deleted"
_MONTH = 30 * 86_400.0
_RECORDED_AFTER_SECONDS = 3.0
"""Seconds after which a publisher's job is in the store, or the publisher has got an error."""
_STORE_REST_SECONDS = 10.0
"""Seconds without a fault of the store, in which all published jobs reach it."""


class FaultInjector:
    """Chooses and injects faults, and undoes lasting ones when their time is over."""

    def __init__(
        self,
        group: ProcessGroup,
        backend: BackendUnderTest,
        client: Client,
        event_log: EventLog,
        *,
        seed: int,
        only: Sequence[str] = (),
    ) -> None:
        self.done: Counter[str] = Counter()
        self.ahead = 0.0
        """The furthest any worker's clock ever was in the future."""
        self._group = group
        self._backend = backend
        self._client = client
        self._event_log = event_log
        self._pick = random.Random(seed)
        self._later: list[tuple[float, int, Later]] = []
        self._order = itertools.count()
        self._full = self._over = False
        self._store_faulty_until = self._store_spared_until = 0.0
        """Until when the store has a fault, and until when it must not get one."""
        self._faults = {
            name: fault
            for name, fault in self._known().items()
            if not only or any(word in name for word in only)
        }
        self._first = list(self._faults)
        self._pick.shuffle(self._first)
        self._turns = Counter(self._first)

    def _known(self) -> Known:
        known: Known = {
            "worker killed": (6, self._kill),
            "worker frozen": (5, self._freeze),
            "worker stopped and started": (3, self._stop),
            "other release": (2, self._roll),
            "publisher killed": (2, self._kill_publisher),
            "paused": (3, self._pause),
            "cancelled": (6, self._cancel),
        }
        if FAKETIME is not None:
            known["clock wrong"] = (3, self._wrong_clock)
        if self._backend.disk is not None:
            known["disk full"] = (1.5, self._fill_disk)
        for proxied in self._backend.proxied_servers:
            known |= self._known_of(proxied)
        if len(self._backend.proxied_servers) > 1:
            known["both connections dead"] = (1.5, self._disturb_both_connections)
        if self._backend.transport_queues is not None:
            known[_DELETED] = (1.5, self._plan_deletion)
        return known

    def _known_of(self, proxied: ProxiedServer) -> Known:
        """Return the faults of a server and its connection."""
        often = 2 / len(proxied.server.stop_modes)
        known: Known = {
            f"{proxied.what} restarted, {stop_mode}": (
                often,
                partial(self._restart, proxied, stop_mode),
            )
            for stop_mode in proxied.server.stop_modes
        }
        if isinstance(proxied.server, Program):
            known[f"{proxied.what} frozen"] = (1, partial(self._freeze_server, proxied))
        known[f"{proxied.connection_name} slow"] = (
            1.5,
            partial(self._disturb_connection, proxied, "slow"),
        )
        known[f"{proxied.connection_name} cut"] = (2, partial(self._cut, proxied))
        known[f"{proxied.connection_name} dead"] = (
            1.5,
            partial(self._disturb_connection, proxied, "dead"),
        )
        return known

    def inject(self) -> None:
        """Inject one fault: first each kind once, in random order, then by weight.

        A fault that is not possible in its first turn gets a second one.
        """
        if self._first:
            name = self._first.pop()
        else:
            weights = [weight for weight, _ in self._faults.values()]
            name = self._pick.choices([*self._faults], weights)[0]
        if self._faults[name][1]():
            self._happened(name)
        elif self._turns[name]:
            self._turns[name] -= 1
            self._first.insert(0, name)

    def _happened(self, name: str) -> None:
        self.done[name] += 1
        self._event_log.write("fault", note=name)

    def undo(self, *, all_of_it: bool = False) -> None:
        """Undo the faults whose time is over. With ``all_of_it``, undo all and plan no more."""
        self._over = all_of_it
        while self._later and (all_of_it or self._later[0][0] <= time.monotonic()):
            heapq.heappop(self._later)[2]()

    def _after(self, seconds: float, act: Later) -> None:
        if not self._over:
            heapq.heappush(self._later, (time.monotonic() + seconds, next(self._order), act))

    # --- processes ---------------------------------------------------------------------------

    def _pick_running(self, members: list[ManagedProcess]) -> ManagedProcess | None:
        able = [m for m in members if m.alive and not m.frozen and not m.leaving]
        return self._pick.choice(able) if able else None

    def _kill(self) -> bool:
        worker = self._pick_running(self._group.workers)
        if worker is not None:
            self._group.kill(worker)
        return worker is not None

    def _kill_publisher(self) -> bool:
        publisher = self._pick_running(self._group.publishers)
        if publisher is not None:
            self._group.kill(publisher)
        return publisher is not None

    def _freeze(self) -> bool:
        """Freeze a worker for longer than its lease: others claim its jobs before it wakes."""
        worker = self._pick_running(self._group.workers)
        if worker is None or sum(member.frozen for member in self._group.workers) >= 2:
            return False
        self._group.freeze(worker)
        pid = worker.pid
        self._after(LEASE * self._pick.uniform(1.5, 2.2), lambda: self._wake(worker, pid))
        return True

    def _wake(self, worker: ManagedProcess, pid: int) -> None:
        if worker.pid == pid and worker.frozen:
            self._group.wake(worker)

    def _stop(self) -> bool:
        worker = self._pick_running(self._group.workers)
        if worker is not None:
            self._group.stop(worker)
        return worker is not None

    def _roll(self) -> bool:
        """Stop a worker gracefully. It is started again with the other release."""
        worker = self._pick_running(self._group.workers)
        if worker is None:
            return False
        worker.release = "old" if worker.release == "new" else "new"
        self._group.stop(worker)
        return True

    def _wrong_clock(self) -> bool:
        worker = self._pick.choice(self._group.workers)
        shift = self._pick.choice([-_MONTH, -7200.0, -600.0, 0.0, 900.0, 10800.0, _MONTH])
        self.ahead = max(self.ahead, shift)
        self._group.set_clock(worker, shift)
        return True

    # --- operators ---------------------------------------------------------------------------

    def _pause(self) -> bool:
        scope, name = self._pick.choice(
            [("all", ""), ("queue", "default"), ("task", "chaos.work.coroutine")]
        )
        if self._store_is_unavailable():
            return False
        try:
            epoch = self._client.ask(lambda o: o.pause(scope, name, "chaos"))  # type: ignore[arg-type]
        except Unavailable:
            return False
        self._after(self._pick.uniform(1.0, 2.5), lambda: self._resume(epoch, scope, name))
        return True

    def _resume(self, epoch: int, scope: str, name: str) -> None:
        if self._store_is_unavailable():
            self._after(0.5, lambda: self._resume(epoch, scope, name))
            return
        try:
            done, alive = self._client.ask(lambda o: o.confirmed(epoch, 0))
            self._event_log.write("pause confirmed", note=f"{done}/{alive}")
            self._client.ask(lambda o: o.resume(scope, name))  # type: ignore[arg-type]
        except Unavailable:
            self._after(0.5, lambda: self._resume(epoch, scope, name))

    def _cancel(self) -> bool:
        if self._store_is_unavailable():
            return False
        lately = [event.job for event in published(self._group.folder / "events")[-60:]]
        wanted = self._pick.sample(lately, min(3, len(lately)))
        for job in wanted:
            try:
                states = self._client.ask(lambda o, job=job: o.cancel([job], "chaos"))  # type: ignore[misc]
            except (Unavailable, UnknownJob):  # a job that keeps no record is soon unknown
                continue
            what = {"cancelled": "cancelled", "running": "asked to stop"}.get(
                states[job], "too late"
            )
            self._event_log.write(what, job=job)
        return bool(wanted)

    def _store_is_unavailable(self) -> bool:
        """Return whether an operator's call would block, and so delay the end of other faults."""
        return self._backend.store is not None and self._backend.store.server.unavailable

    # --- disk, server, connection ------------------------------------------------------------

    def _fill_disk(self) -> bool:
        disk, pids = self._backend.disk, self._group.pids()
        lasts = self._pick.uniform(1.0, 2.5)
        if disk is None or self._full or not self._may_disturb(self._backend.store, lasts):
            return False
        disk.fill(pids)
        self._full = True
        self._after(lasts, lambda: self._free_disk(pids))
        return True

    def _free_disk(self, pids: list[int]) -> None:
        if self._backend.disk is not None:
            self._backend.disk.free(pids)
        self._full = False
        if self._backend.store is not None:  # a server that could not write may have exited
            self._backend.store.restore()

    def _restart(self, proxied: ProxiedServer, stop_mode: str) -> bool:
        server = proxied.server
        if self._full or not self._may_disturb(proxied) or server.unavailable:
            return False
        server.stop(stop_mode)
        pause = self._pick.uniform(0, 1.0)
        if isinstance(server, Program):
            self._after(pause, server.launch)
        else:
            time.sleep(pause)
            server.start()
        return True

    def _freeze_server(self, proxied: ProxiedServer) -> bool:
        server = proxied.server
        if not isinstance(server, Program) or server.unavailable:
            return False
        server.freeze()
        self._after(self._pick.uniform(1.0, LEASE * 1.3), server.wake)
        return True

    def _disturb_connection(self, proxied: ProxiedServer, state: ConnectionState) -> bool:
        lasts = self._pick.uniform(1.0, LEASE * 1.3)
        if not self._may_disturb(proxied, lasts):
            return False
        proxied.proxy.set_state(state)
        self._after(lasts, lambda: proxied.proxy.set_state("fine"))
        return True

    def _cut(self, proxied: ProxiedServer) -> bool:
        return self._may_disturb(proxied) and proxied.proxy.cut() > 0

    def _disturb_both_connections(self) -> bool:
        """Neither broker nor store answers."""
        broker, store = self._backend.proxied_servers
        return self._disturb_connection(store, "dead") and self._disturb_connection(broker, "dead")

    # --- queues ------------------------------------------------------------------------------

    def _plan_deletion(self) -> bool:
        """Plan the deletion of one of the broker's queues, as by an operator.

        Its jobs are in the store, unless the store was unavailable when they were published. Those
        jobs would be lost, so the queue is deleted only when the store has all published jobs.
        """
        if time.monotonic() >= self._store_spared_until:
            self._store_spared_until = time.monotonic() + _STORE_REST_SECONDS
            self._delete_queue(self._pick.sample(LANES, len(LANES)))
        return False  # not yet

    def _delete_queue(self, lanes: Sequence[Lane]) -> None:
        """Delete the first of these that exists; try later if the store does not have all jobs."""
        transport_queues, now = self._backend.transport_queues, time.monotonic()
        if transport_queues is None or now >= self._store_spared_until:
            return
        unavailable = any(proxied.server.unavailable for proxied in self._backend.proxied_servers)
        event_folder = self._group.folder / "events"
        if (
            unavailable
            or now < self._store_faulty_until + _RECORDED_AFTER_SECONDS
            or not all_recorded(event_folder, self._backend.audit)
        ):
            self._after(0.3, partial(self._delete_queue, lanes))
        elif any(map(transport_queues.delete, lanes)):
            self._store_spared_until = time.monotonic() + _RECORDED_AFTER_SECONDS
            self._happened(_DELETED)

    def _may_disturb(self, proxied: ProxiedServer | None, lasts: float = 0.0) -> bool:
        """Return whether a fault may be injected now. If so, remember how long the store has it."""
        now = time.monotonic()
        if proxied is not self._backend.store or proxied is None:
            return True
        if now >= self._store_spared_until:
            self._store_faulty_until = max(self._store_faulty_until, now + lasts)
        return now >= self._store_spared_until
