"""Measures time inside a guest of `nearpage lab`, as JSON: whether the clock is monotonic over CPUs, whether CPUs compute
in parallel, and how long sleeps, wake-ups and spinning take."""

import json
import mmap
import os
import time

CPUS = sorted(os.sched_getaffinity(0))
HOPS = 2000
ROUND_TRIPS = 300
COMPUTE_ROUNDS = 60_000
WAIT_NS = 5_000_000


def hops():
    """Counts how often the clock went back when the process moved to another CPU."""
    back, last = 0, time.monotonic_ns()
    for hop in range(HOPS):
        os.sched_setaffinity(0, {CPUS[hop % len(CPUS)]})
        now = time.monotonic_ns()
        back += now < last
        last = now
    return back


def compute():
    total = 0
    for number in range(COMPUTE_ROUNDS):
        total += number * number
    return total


def together(count):
    """Nanoseconds in which `count` processes compute in parallel, one per CPU. All spin until a common start time."""
    ready, go, results = os.pipe(), os.pipe(), os.pipe()
    for cpu in CPUS[:count]:
        if os.fork() == 0:
            os.sched_setaffinity(0, {cpu})
            compute()
            os.write(ready[1], b".")
            begin = int(os.read(go[0], 32))
            while time.monotonic_ns() < begin:
                pass
            compute()
            os.write(results[1], b"%032d" % time.monotonic_ns())
            os._exit(0)
    for _ in range(count):
        os.read(ready[0], 1)
    begin = time.monotonic_ns() + WAIT_NS
    os.write(go[1], b"%032d" % begin * count)
    end = max(int(os.read(results[0], 32)) for _ in range(count))
    for _ in range(count):
        os.wait()
    return end - begin


def round_trip():
    """Nanoseconds of a round trip of a byte to a process on another CPU. Both processes sleep while they wait."""
    there, back = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.sched_setaffinity(0, {CPUS[-1]})
        for _ in range(ROUND_TRIPS):
            os.write(back[1], os.read(there[0], 1))
        os._exit(0)
    os.sched_setaffinity(0, {CPUS[0]})
    begun = time.monotonic_ns()
    for _ in range(ROUND_TRIPS):
        os.write(there[1], b".")
        os.read(back[0], 1)
    taken = time.monotonic_ns() - begun
    os.wait()
    return taken / ROUND_TRIPS


def spinning_round_trip():
    """Nanoseconds of a round trip of a byte of shared memory to a process on another CPU. Both processes spin while they wait."""
    shared = mmap.mmap(-1, mmap.PAGESIZE)
    if os.fork() == 0:
        os.sched_setaffinity(0, {CPUS[1]})
        for _ in range(ROUND_TRIPS):
            while shared[0] == 0:
                pass
            shared[0] = 0
        os._exit(0)
    os.sched_setaffinity(0, {CPUS[0]})
    shared[0] = 1
    while shared[0] == 1:
        pass
    begun = time.monotonic_ns()
    for _ in range(ROUND_TRIPS - 1):
        shared[0] = 1
        while shared[0] == 1:
            pass
    taken = time.monotonic_ns() - begun
    os.wait()
    os.sched_setaffinity(0, CPUS)
    return taken / (ROUND_TRIPS - 1)


def slept(seconds):
    begun = time.monotonic_ns()
    time.sleep(seconds)
    return (time.monotonic_ns() - begun) / 1e9


backwards = hops()
os.sched_setaffinity(0, CPUS)
alone = together(1)
each = {str(count): count * alone / together(count) for count in (2, 4) if count <= len(CPUS)}
print(
    json.dumps(
        {
            "hops": HOPS,
            "clock_went_back": backwards,
            "alone_ms": alone / 1e6,
            "speedup": each,
            "slept_s": {"0.01": slept(0.01), "1": slept(1)},
            "round_trip_us": round_trip() / 1e3,
            "spinning_round_trip_us": spinning_round_trip() / 1e3,
        }
    )
)
