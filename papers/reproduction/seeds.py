"""Policies that draw at random: their figures are of the run of median time of five seeds, with the range of all."""
from reproduction import document

SEEDS = range(5)
# `carrefour` draws the sampled instructions and the nodes of interleaved pages; `auto` draws the one of ten misses that
# it sees.
RANDOMISED = {"carrefour", "auto"}


def is_randomised(policy, words):
    """Whether a policy's result depends on the seed, with these settings."""
    return policy in RANDOMISED or any(word.startswith("source=sampled-") for word in words)


def median(first, once, fields=("time_ns",)):
    """The run of median time of all seeds, with these `fields` of each; `first`: that of seed 0, `once`: makes another seed's."""
    runs = [first, *(once("--set", f"seed={seed}") for seed in SEEDS[1:])]
    runs.sort(key=lambda result: result["time_ns"])
    return {**runs[len(runs) // 2], "seeds": [{key: run[key] for key in fields if key in run} for run in runs]}


def medians(found, words, once, fields=("time_ns",)):
    """Results by policy, of `simulate` with these words: those that draw are the median's. `once`: one policy with more words."""
    drawn = [policy for policy in found if is_randomised(policy, words)]
    return {**found, **{policy: median(found[policy], lambda *more, policy=policy: once(policy, *more), fields) for policy in drawn}}


def times(result):
    """The least and the most time of a result's seeds, where it has any."""
    found = [run["time_ns"] for run in result.get("seeds", [])]
    return (min(found), max(found)) if found else None


def ranged(result, base_ns, sign=1):
    """How far the time is from another, with the range of all seeds where there are several: `+1.0 % (+0.5 to +2.1)`."""
    said = document.percent(sign * (result["time_ns"] / base_ns - 1))
    if not (found := times(result)):
        return said
    least, most = sorted(100 * sign * (time / base_ns - 1) for time in found)
    return f"{said} ({least:+.1f} to {most:+.1f})"
