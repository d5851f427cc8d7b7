"""Samples of a trace, as sampling hardware would have taken them."""
import json
import shutil


def next_prime(number):
    number = max(2, number)
    while any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number += 1
    return number


def downsampled(command, trace, samples, wanted):
    """Keeps about `wanted` accesses of a trace in the folder `samples`; `command` runs nearpage. Returns their number.

    One of a prime number of accesses is kept: of a loop that misses three arrays in turn, one of 96 would be of one array only.
    """
    count = json.loads(command(["downsample", trace, "--json", "--every", "1000", "-o", samples]))["input_accesses"]
    shutil.rmtree(samples)
    every = next_prime(count // wanted) if count > wanted else 1
    return json.loads(command(["downsample", trace, "--json", "--every", str(every), "-o", samples]))["kept_accesses"]
