"""Machine files with smaller caches, for small inputs."""
import re


def with_smaller_caches(text, divisor, smallest_kib):
    """Returns the machine file's text with the sizes of all caches beyond the first level divided, down to `smallest_kib`."""
    found = []
    for part in re.split(r"(?m)^(?=\[)", text):
        if part.startswith("[[cache]]") and int(re.search(r"level = (\d)", part)[1]) > 1:
            ways = int((re.search(r"associativity = (\d+)", part) or [0, 8])[1])
            line = int((re.search(r"line_bytes = (\d+)", part) or [0, 64])[1])
            size = lambda found: f"size_bytes = {max(int(found[1]) // divisor, smallest_kib * 1024) // (ways * line) * ways * line}"
            part = re.sub(r"size_bytes = (\d+)", size, part)
        found.append(part)
    return "".join(found)
