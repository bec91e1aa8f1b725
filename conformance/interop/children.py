"""The processes of a scenario: what they said, and that each is ended by its pid, whatever happens."""

import json
import os
import subprocess
import threading
import time
from pathlib import Path


class ChildError(Exception):
    """A process did not do what a scenario waits for."""


class Child:
    """A process that tells JSON lines on stdout. Its output is kept in `logs`."""

    def __init__(self, name: str, command: list[str], logs: Path, env: dict[str, str], stdin=subprocess.DEVNULL):
        self.name, self.lines, self.changed, self.closed = name, [], threading.Condition(), False
        self.out, self.err = logs / f"{name}.out", logs / f"{name}.err"
        with self.err.open("w") as err:
            err.write(" ".join(command) + "\n")
            err.flush()
            # A byte that is no UTF-8 must not end the reader.
            text = {"encoding": "utf-8", "errors": "replace"}
            self.process = subprocess.Popen(
                command, stdin=stdin, stdout=subprocess.PIPE, stderr=err, env={**os.environ, **env}, **text
            )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        try:
            with self.out.open("w", encoding="utf-8") as out:
                for line in self.process.stdout:
                    out.write(line)
                    out.flush()
                    self._hear(line)
        finally:
            with self.changed:
                self.closed = True
                self.changed.notify_all()

    def _hear(self, line: str):
        try:
            value = json.loads(line)
        except ValueError:
            return
        with self.changed:
            if isinstance(value, dict):
                self.lines.append(value)
            self.changed.notify_all()

    def events(self, name: str, **fields) -> list[dict]:
        """What it told by this name, with these fields."""
        with self.changed:
            lines = list(self.lines)
        return [e for e in lines if e.get("event") == name and all(e.get(k) == v for k, v in fields.items())]

    def names(self) -> list[str]:
        """Its events by name, in the order told."""
        with self.changed:
            return [e["event"] for e in self.lines if "event" in e]

    def params(self) -> list[dict]:
        with self.changed:
            return [e["kv_transfer_params"] for e in self.lines if "kv_transfer_params" in e]

    def until(self, what: str, condition, timeout: float = 60.0):
        """Waits until `condition()` gives something true, which it returns."""
        deadline = time.monotonic() + timeout
        while True:
            with self.changed:
                if value := condition():
                    return value
                left = deadline - time.monotonic()
                if self.closed:
                    raise ChildError(f"{self.name} ended ({self.process.wait()}) before {what}: {self.last()}")
                if left <= 0:
                    raise ChildError(f"{self.name}: no {what} within {timeout:.0f} s: {self.last()}")
                self.changed.wait(left)

    def until_event(self, name: str, count: int = 1, timeout: float = 60.0, **fields) -> list[dict]:
        def enough():
            found = self.events(name, **fields)
            return found if len(found) >= count else None

        return self.until(f"{count} x {name}", enough, timeout)

    def give(self, text: str):
        """Writes to its stdin, and closes it."""
        self.process.stdin.write(text)
        self.process.stdin.close()

    def wait(self, timeout: float = 90.0) -> int:
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ChildError(f"{self.name} did not end within {timeout:.0f} s: {self.last()}") from None
        self.reader.join(5)
        return status

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join(5)

    def last(self) -> str:
        """The end of what it said, for a message."""
        err = [line.strip() for line in self.err.read_text(errors="replace").splitlines()[1:] if line.strip()]
        told = self.lines[-1:] and json.dumps(self.lines[-1])[:300]
        return "; ".join([*err[-4:], told or "nothing told"])


class Children:
    """All processes of one scenario. Leaving it kills those that still run."""

    def __init__(self, logs: Path):
        self.logs, self.all = logs, []

    def __enter__(self):
        self.logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_):
        for child in self.all:
            child.kill()

    def start(self, name: str, command: list[str], env: dict[str, str] | None = None, stdin=subprocess.DEVNULL) -> Child:
        child = Child(name, command, self.logs, env or {}, stdin)
        self.all.append(child)
        return child
