"""The same as the rest of this benchmark through NIXL's Python API: two agents of one process, without progress threads.

Reads blocks to run from standard input, one a line: kind, bytes, parts of a step, seconds. Answers each with nanoseconds a part: the
median of the block's steps.
"""

import os
import statistics
import sys
import time

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # UCX tells what it thinks on standard output

from nixl._api import nixl_agent, nixl_agent_config  # noqa: E402

HERE, THERE = "here".ljust(40, "-"), "there".ljust(40, "-")
PATIENCE = 10_000_000


def main():
    config = nixl_agent_config(enable_prog_thread=False)
    here, there = nixl_agent(HERE, config), nixl_agent(THERE, config)
    here.add_remote_agent(there.get_agent_metadata())
    there.add_remote_agent(here.get_agent_metadata())
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        kind, size, parts, seconds = line.split()
        parts, message = int(parts), b"x" * int(size)
        step = {
            "idle": lambda: idle(here, parts),
            "latency": lambda: round_trip(here, there, message),
            "rate": lambda: burst(here, there, message, parts),
        }[kind]
        run(step, float(seconds) / 10)
        print(statistics.median(run(step, float(seconds))) / parts, file=answers, flush=True)


def run(step, seconds):
    took, end = [], time.perf_counter() + seconds
    while not took or time.perf_counter() < end:
        before = time.perf_counter_ns()
        step()
        took.append(time.perf_counter_ns() - before)
    return took


def idle(agent, polls):
    poll = agent.get_new_notifs
    for _ in range(polls):
        if poll():
            raise RuntimeError("something came while nothing should")


def round_trip(here, there, message):
    here.send_notif(THERE, message)
    arrive(there, here, 1)
    there.send_notif(HERE, message)
    arrive(here, there, 1)


def burst(here, there, message, count):
    send = here.send_notif
    for _ in range(count):
        send(THERE, message)
    arrive(there, here, count)


def arrive(to, sender, count):
    """Polls until so many have come. The sender is polled where nothing came: it may have more to send."""
    poll, other = to.get_new_notifs, sender.get_new_notifs
    for _ in range(PATIENCE):
        if came := poll():
            count -= sum(map(len, came.values()))
            if count <= 0:
                return
        else:
            other()
    raise RuntimeError(f"{count} notifications did not come")


main()
