"""The log of Redis gives the same audit entries as triggers would."""

from __future__ import annotations

from chaos.append_log import LogReplay, transactions

ROOT = "umbel:{scenario}"
PUBLISHED = ["HSET", f"{ROOT}:job:one", "task", "work", "queue", "default", "state", "queued"]
CLAIMED = [
    ["HSET", f"{ROOT}:job:one", "state", "running", "fence", "1", "worker", "w"],
    ["HSET", f"{ROOT}:leases:worker-a", "one", "1"],
]
RELEASED = [
    ["HDEL", f"{ROOT}:leases:worker-a", "one"],
    ["HSET", f"{ROOT}:job:one", "state", "queued"],
]
STOLEN = [
    ["HSET", f"{ROOT}:job:one", "state", "running", "fence", "2"],
    ["HSET", f"{ROOT}:leases:worker-b", "one", "2"],
]
RECORDED = [["HSET", f"{ROOT}:job:one", "state", "succeeded", "reason", ""]]


def written(*transactions: list[list[str]]) -> bytes:
    data = b"#TS:1\r\n"
    for commands in transactions:
        for command in [["MULTI"], *commands, ["EXEC"]] if len(commands) > 1 else commands:
            data += b"*%d\r\n" % len(command)
            for part in command:
                data += b"$%d\r\n%b\r\n" % (len(part), part.encode())
    return data


def recorded(*steps: list[list[str]]) -> list[tuple[str, str, int]]:
    replay = LogReplay()
    for commands, _ in transactions(written(*steps)):
        replay.take(commands, 1.0)
    return [(entry.what, entry.owner, entry.fence) for entry in replay.entries]


def test_each_claim_release_and_record_of_a_job_gives_an_entry() -> None:
    assert recorded([PUBLISHED], CLAIMED, RELEASED, STOLEN, RECORDED) == [
        ("published", "", 0),
        ("claimed", "worker-a", 1),
        ("released", "worker-a", 1),
        ("claimed", "worker-b", 2),
        ("recorded", "w", 2),
        ("left", "worker-b", 2),
    ]


def test_a_job_published_for_a_waiting_worker_is_published_and_claimed() -> None:
    handed = [["HSET", f"{ROOT}:job:one", "state", "running", "fence", "1"], CLAIMED[-1]]
    assert recorded(handed) == [("published", "", 0), ("claimed", "worker-a", 1)]


def test_a_running_job_whose_owner_changes_is_stolen() -> None:
    assert recorded([PUBLISHED], CLAIMED, STOLEN)[-1] == ("stolen", "worker-b", 2)


def test_a_deleted_job_leaves_without_a_record() -> None:
    last = recorded([PUBLISHED], CLAIMED, [["DEL", f"{ROOT}:job:one"]])[-1]
    assert last == ("left", "worker-a", 1)


def test_an_incomplete_transaction_is_not_read_yet() -> None:
    whole = written([PUBLISHED], CLAIMED)
    for size in range(len(written([PUBLISHED])), len(whole)):
        assert [commands for commands, _ in transactions(whole[:size])] == [[PUBLISHED]]
    assert [end for _, end in transactions(whole)][-1] == len(whole)


def test_registrations_pauses_and_confirmations_give_entries_in_order() -> None:
    enlisted = [["HSET", f"{ROOT}:worker:worker-a", "name", "w"]]
    pause, sections = "pauses/queue//default", f"{ROOT}:section_revisions"
    paused = [
        ["HSET", f"{ROOT}:entry_revisions", pause, "1"],
        ["HSET", sections, "pauses/", "1"],
    ]
    beaten = [["HSET", f"{ROOT}:worker:worker-a", "heartbeats", "1", "epoch", "1"]]
    resumed = [["HDEL", f"{ROOT}:entry_revisions", pause], ["HSET", sections, "pauses/", "2"]]
    ended = [["DEL", f"{ROOT}:worker:worker-a"]]
    assert recorded(enlisted, paused, beaten, beaten, resumed, ended) == [
        ("enlisted", "worker-a", 0),
        ("paused", "", 0),
        ("epoch", "", 1),
        ("confirmed", "worker-a", 1),
        ("resumed", "", 0),
        ("epoch", "", 2),
        ("ended", "worker-a", 0),
    ]
