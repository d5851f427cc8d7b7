"""Results of finished runs in files, so that an interrupted program can go on."""
import hashlib
import json
import os


def digest(program):
    """Returns a hash of the program's file: the program's version."""
    with open(program, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def store(path, text):
    """Writes a file atomically. Processes on several hosts may write the same file."""
    new = f"{path}.{os.uname().nodename}.{os.getpid()}.new"
    with open(new, "w") as file:
        file.write(text)
    os.replace(new, path)


def cached(path, key, make):
    """Returns the value that the file has for this key. If the file has another key or is missing, calls `make` and stores its value."""
    key = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    if os.path.exists(path):
        with open(path) as file:
            known = json.load(file)
        if known["key"] == key:
            return known["value"]
        # The old file goes before `make` replaces what it belongs to.
        os.remove(path)
    value = make()
    store(path, json.dumps({"key": key, "value": value}))
    return value
