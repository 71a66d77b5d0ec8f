"""What Redis appends to its log is told as triggers would tell it."""

from __future__ import annotations

from chaos.append_log import Memory, transactions

ROOT = "umbel:{scenario}"
PUBLISHED = ["HSET", f"{ROOT}:job:one", "task", "work", "queue", "default", "state", "queued"]
CLAIMED = [
    ["HSET", f"{ROOT}:job:one", "state", "running", "fence", "1", "worker", "w"],
    ["HSET", f"{ROOT}:leases:life-a", "one", "1"],
]
RELEASED = [
    ["HDEL", f"{ROOT}:leases:life-a", "one"],
    ["HSET", f"{ROOT}:job:one", "state", "queued"],
]
STOLEN = [
    ["HSET", f"{ROOT}:job:one", "state", "running", "fence", "2"],
    ["HSET", f"{ROOT}:leases:life-b", "one", "2"],
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


def told(*steps: list[list[str]]) -> list[tuple[str, str, int]]:
    memory = Memory()
    for commands, _ in transactions(written(*steps)):
        memory.take(commands, 1.0)
    return [(entry.what, entry.owner, entry.fence) for entry in memory.entries]


def test_a_job_that_is_claimed_given_back_claimed_again_and_recorded_is_told() -> None:
    assert told([PUBLISHED], CLAIMED, RELEASED, STOLEN, RECORDED) == [
        ("published", "", 0),
        ("claimed", "life-a", 1),
        ("released", "life-a", 1),
        ("claimed", "life-b", 2),
        ("recorded", "w", 2),
        ("left", "life-b", 2),
    ]


def test_a_job_that_is_published_into_waiting_hands_is_published_and_claimed() -> None:
    handed = [["HSET", f"{ROOT}:job:one", "state", "running", "fence", "1"], CLAIMED[-1]]
    assert told(handed) == [("published", "", 0), ("claimed", "life-a", 1)]


def test_a_job_that_changes_hands_while_it_runs_is_stolen() -> None:
    assert told([PUBLISHED], CLAIMED, STOLEN)[-1] == ("stolen", "life-b", 2)


def test_a_job_that_is_forgotten_has_left_without_a_record() -> None:
    last = told([PUBLISHED], CLAIMED, [["DEL", f"{ROOT}:job:one"]])[-1]
    assert last == ("left", "life-a", 1)


def test_what_is_not_written_to_its_end_is_not_told_yet() -> None:
    whole = written([PUBLISHED], CLAIMED)
    for size in range(len(written([PUBLISHED])), len(whole)):
        assert [commands for commands, _ in transactions(whole[:size])] == [[PUBLISHED]]
    assert [end for _, end in transactions(whole)][-1] == len(whole)


def test_lives_pauses_and_their_confirmation_are_told_in_their_order() -> None:
    enlisted = [["HSET", f"{ROOT}:worker:life-a", "name", "w"]]
    paused = [["HSETNX", f"{ROOT}:pauses", "queue:default", "{}"], ["INCR", f"{ROOT}:epoch"]]
    beaten = [["HSET", f"{ROOT}:worker:life-a", "heartbeats", "1", "epoch", "1"]]
    resumed = [["HDEL", f"{ROOT}:pauses", "queue:default"], ["INCR", f"{ROOT}:epoch"]]
    ended = [["DEL", f"{ROOT}:worker:life-a"]]
    assert told(enlisted, paused, beaten, beaten, resumed, ended) == [
        ("enlisted", "life-a", 0),
        ("paused", "", 0),
        ("epoch", "", 1),
        ("confirmed", "life-a", 1),
        ("resumed", "", 0),
        ("epoch", "", 2),
        ("ended", "life-a", 0),
    ]
