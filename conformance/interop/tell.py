"""What a vLLM peer tells: events as JSON lines on stdout."""

import json
import logging
import threading
import time
import traceback


class Teller:
    """One line per event, stamped with vLLM's clock. Remembers whether vLLM ever complained."""

    def __init__(self):
        self._lock, self.raised = threading.Lock(), False

    def __call__(self, event: str, **fields):
        self.line({"event": event, "at": time.perf_counter(), **fields})

    def line(self, value: dict):
        text = json.dumps(value)
        with self._lock:
            print(text, flush=True)

    def complain(self, what: str, error: BaseException | None):
        self.raised = True
        self("raised", what=what, details="".join(traceback.format_exception(error)) if error else "")

    def thread_died(self, args: threading.ExceptHookArgs):
        self.complain(f"thread {args.thread.name if args.thread else '?'} died", args.exc_value)


class LogTeller(logging.Handler):
    """vLLM's log. An error is a complaint. That a lease expired is nowhere else to be seen, so it is kept for `take_expired`."""

    def __init__(self, tell: Teller):
        super().__init__(logging.WARNING)
        self._tell, self._expired = tell, []

    def emit(self, record):
        message = record.getMessage()
        if message.startswith("Releasing expired KV blocks for request"):
            self._expired.append(record.args[0])
        elif message.startswith("Potentially invalid KV blocks"):
            self._tell("completion_after_expiry", request=record.args[0])
        elif record.levelno >= logging.ERROR:
            self._tell.complain(message, record.exc_info[1] if record.exc_info else None)
        else:
            self._tell("warning", message=message)

    def take_expired(self) -> set[str]:
        """The requests whose lease expired since the last call."""
        taken, self._expired = set(self._expired), []
        return taken
