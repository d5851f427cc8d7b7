"""Randomised policies: each is run with five seeds. The run with the median time counts, and the range of all five is shown."""
from reproduction import document

SEEDS = range(5)
# `carrefour` draws the sampled instructions and the nodes of interleaved pages; `auto` draws the one of ten misses that
# it sees.
RANDOMISED = {"carrefour", "auto"}


def is_randomised(policy, words):
    """Whether a policy's result depends on the seed, with these settings."""
    return policy in RANDOMISED or any(word.startswith("source=sampled-") for word in words)


def median(first, once, fields=("time_ns",)):
    """Returns the run with the median time, and the `fields` fields of every seed's run. `first`: the run with seed 0; `once`: runs another seed."""
    runs = [first, *(once("--set", f"seed={seed}") for seed in SEEDS[1:])]
    runs.sort(key=lambda result: result["time_ns"])
    return {**runs[len(runs) // 2], "seeds": [{key: run[key] for key in fields if key in run} for run in runs]}


def medians(found, words, once, fields=("time_ns",)):
    """Replaces the results of randomised policies by their median runs. `words`: the arguments that gave `found`; `once`: runs one policy with further arguments."""
    drawn = [policy for policy in found if is_randomised(policy, words)]
    return {**found, **{policy: median(found[policy], lambda *more, policy=policy: once(policy, *more), fields) for policy in drawn}}


def times(result):
    """Returns the shortest and the longest time of all seeds, or None for a policy that is not randomised."""
    found = [run["time_ns"] for run in result.get("seeds", [])]
    return (min(found), max(found)) if found else None


def ranged(result, base_ns, sign=1):
    """Returns the change against `base_ns`, with the range of all seeds if there are several: `+1.0 % (+0.5 to +2.1)`."""
    said = document.percent(sign * (result["time_ns"] / base_ns - 1))
    if not (found := times(result)):
        return said
    least, most = sorted(100 * sign * (time / base_ns - 1) for time in found)
    return f"{said} ({least:+.1f} to {most:+.1f})"
