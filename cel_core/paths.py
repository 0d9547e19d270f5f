"""A path as a person types it."""

from pathlib import Path

from cel_core.errors import ConfigError


def typed_path(text: str) -> Path:
    """The path a person typed, with ``~`` filled in.

    Raises:
        ConfigError: it cannot be a path here: an unknown user's home, a name too long, a forbidden letter.
    """
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"'{text[:60]}' cannot be a path ({error}): check it") from error
    return path
