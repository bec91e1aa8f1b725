"""How a scenario says what went wrong."""


class Failed(Exception):
    """What a scenario expected and what came."""


def expect(condition, message: str):
    if not condition:
        raise Failed(message)
