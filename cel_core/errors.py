"""Errors a user can mend: each message gives the value, the reason and the remedy, in one line.

Programming mistakes raise ordinary exceptions; these are for what a person typed, chose or has on disk. The command line
prints them with exit status 2, the pages show them as a message, and neither shows a traceback.
"""


class CelError(Exception):
    """Something the user can mend."""


class ConfigError(CelError):
    """A setting out of its range, or two settings that do not go together."""


class HeadError(CelError):
    """A head that cannot be read, or that the model does not have."""


class ModelError(CelError):
    """A model that cannot be loaded, or whose heads cannot be located."""


class DataError(CelError):
    """Rows that are missing, unreadable or of another form."""


class StoreError(CelError):
    """A store that cannot be opened, written or understood."""


class SealedError(StoreError):
    """A question about held-out examples of a search whose head set is not frozen yet."""


class ToyError(CelError):
    """A toy run with settings outside the model, or one that diverged."""
