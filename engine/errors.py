"""The one exception type that is meant for a person."""


class UnpausedError(Exception):
    """A fault told to the user as one line: what is wrong and what to do about it.

    Commands print the message on standard error and leave with exit code 2; the page shows it
    where it happened. Anything else that escapes is a defect and keeps its traceback.
    """


class PromptTooLong(UnpausedError):
    """The context has no room for what is to be answered."""
