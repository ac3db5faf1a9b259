"""From a TOML file and the environment to a checked Config.

Must not know: what the keys mean (config.py and config_check.py do). Rules: every error names file, line, key and what
to do; an unknown key names the nearest known one; a secret is read from its own file and never put into a Config.
"""

from __future__ import annotations

import re
import ssl
import tomllib
import typing
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import msgspec

from nacosdns.config import Cache, Config, PolicySection, Static, StaticInstance, ZoneSection
from nacosdns.config_check import complaints, static_complaints
from nacosdns.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from nacosdns.config_check import Complaint, Path

_Section = typing.TypeVar("_Section")
_Loaded = typing.TypeVar("_Loaded")

DEFAULT_PATH = "/etc/nacosdns/nacosdns.toml"
ENVIRONMENT_PREFIX = "NACOSDNS_"
_KUBERNETES_KEYS = ("service_host", "service_port", "port")  # what Kubernetes sets for a Service of our name
_INTEGER_BITS_MAX = 63  # and a sign: TOML promises no more, and no more can be said to a child
_TABLES = ("namespaces", "groups")
_SECTIONS = ("server", "nacos", "policy", "cache", "forward", "web", "log", "host", "zone")
_TOP_KEYS = (*_SECTIONS, *_TABLES, "static", "static_file")
_HEADER = re.compile(r"(\[\[?)([^\[\]]+)\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"""((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")


class _Origin:
    """Where each value came from, so that an error can say so."""

    def __init__(self, file: str, lines: Mapping[Path, int]) -> None:
        self.file = file
        self.lines = lines
        self.variables: dict[Path, str] = {}

    def error(self, path: Path, what: str, remedy: str = "") -> ConfigError:
        """The error for this key; the line is that of the key, or else of the table that it belongs to."""
        key = ".".join(_quoted(part) for part in path if isinstance(part, str))
        if path in self.variables:
            return ConfigError(what, file="environment", key=self.variables[path], remedy=remedy)
        known = (self.lines[path[:size]] for size in range(len(path), 0, -1) if path[:size] in self.lines)
        return ConfigError(what, file=self.file, line=next(known, 0), key=key, remedy=remedy)


def load(path: str | None, environ: Mapping[str, str]) -> Config:
    """The configuration of a file (None: only defaults) with the environment over it, checked.

    Raises ConfigError for the first fault, in the order of the file's sections. The password file is not read:
    see ``read_password``.
    """
    text = _read(path) if path else ""
    raw = _parsed(text, path or "")
    origin = _Origin(path or "", find_lines(text))
    _override(raw, environ, origin)
    config = _build(raw, origin)
    _refuse(complaints(config), origin)
    return config


def is_there(path: str) -> bool:
    """Whether a file is there, also one that we may not look at: that has to be said when it is read."""
    try:
        FilePath(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


class Source:
    """Where a running bridge has its configuration from: ``file`` must be there, named at the start or found once.

    ``""`` until a file is found at the ``usual`` place: only defaults and the environment.
    """

    def __init__(self, file: str | None, environ: Mapping[str, str], usual: str = DEFAULT_PATH) -> None:
        self.file = file or ""
        self._environ = environ
        self._usual = usual

    def __repr__(self) -> str:
        return f"<Source {self.file or 'defaults'}>"

    def read(self) -> Config:
        """The configuration as ``load`` has it. A file that was there and is gone is an error, not the defaults."""
        file = self.file or (self._usual if is_there(self._usual) else "")
        config = load(file or None, self._environ)
        self.file = file
        return config


def cache_dir_alone(path: str | None, environ: Mapping[str, str]) -> str:
    """``cache.dir`` of a configuration that cannot be used otherwise; its default where that cannot be read either."""
    variable = f"{ENVIRONMENT_PREFIX}CACHE_DIR"
    if variable in environ:
        return environ[variable]
    try:
        text = _read(path) if path else ""
        line = find_lines(text).get(("cache", "dir"), 0)
        value: object = tomllib.loads(text.split("\n")[line - 1]) if line else ""
    except (ConfigError, ValueError):
        value = ""
    while isinstance(value, dict) and value:  # the key may be dotted
        value = next(iter(value.values()))
    return value if isinstance(value, str) and value else Cache().dir


def load_static(path: str) -> tuple[Static, ...]:
    """The [[static]] tables of a static_file; ConfigError as for a configuration."""
    text = _read(path, remedy="write it, or take static_file out of the configuration")
    raw = _parsed(text, path)
    origin = _Origin(path, find_lines(text))
    _refuse_unknown(raw, ("static",), (), origin)
    sections = _statics(raw, origin)
    _refuse(static_complaints(sections), origin)
    return sections


def read_password(config: Config) -> str:
    """The password for Nacos; ``""`` when there is no password file. ConfigError when it cannot be read or is empty."""
    path = config.nacos.password_file
    if not path:
        return ""
    try:
        password = FilePath(path).read_text(encoding="utf-8").strip("\r\n")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read ({_reason(error)})",
            key="nacos.password_file",
            remedy="write the password into it, one line, readable by the user that starts nacosdns",
        ) from error
    if not password:
        raise ConfigError(f"{path} is empty", key="nacos.password_file", remedy="write the password into it, one line")
    return password


def check_certificates(config: Config) -> None:
    """ConfigError when the certificates for Nacos cannot be read with the rights that we have, or are none."""
    nacos = config.nacos
    for name in ("ca_file", "cert_file", "key_file"):
        if path := getattr(nacos, name):
            _check_readable(path, f"nacos.{name}")
    if nacos.ca_file:
        context = _tried(lambda: ssl.create_default_context(cafile=nacos.ca_file), nacos.ca_file, "nacos.ca_file")
        pair = f"{nacos.cert_file} with {nacos.key_file}"
        # an empty password is refused by a key that has one: nobody could type it in
        _tried(lambda: context.load_cert_chain(nacos.cert_file, nacos.key_file, lambda: ""), pair, "nacos.cert_file")


def _check_readable(path: str, key: str) -> None:
    try:
        with FilePath(path).open("rb"):
            pass
    except (OSError, ValueError) as error:
        remedy = "it has to be there and readable by the user of server.user"
        raise ConfigError(f"{path} cannot be read ({_reason(error)})", key=key, remedy=remedy) from error


def _tried(load: Callable[[], _Loaded], files: str, key: str) -> _Loaded:
    try:
        return load()
    except (OSError, ValueError) as error:  # an ssl.SSLError is an OSError
        reason = getattr(error, "reason", "") or _reason(error)
        what = f"{files} cannot be loaded ({str(reason).replace('_', ' ').lower()})"
        remedy = "it takes PEM: ca_file certificates, cert_file one of ours, key_file its key without a password"
        raise ConfigError(what, key=key, remedy=remedy) from error


def located(error: ConfigError, path: str | None) -> ConfigError:
    """An error that knows only its key, with the file and the line where the key stands, if it does."""
    line = find_lines(_read(path)).get(tuple(error.key.split(".")), 0) if path and not error.file else 0
    if not path or not line:
        return error
    return ConfigError(error.what, file=path, line=line, key=error.key, remedy=error.remedy)


def _read(path: str, *, remedy: str = "name a configuration with -c FILE (config/agent.toml is an example)") -> str:
    try:
        return FilePath(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        if isinstance(error, PermissionError):
            remedy = "run this as root, or let this user read it"
        raise ConfigError(f"cannot be read ({_reason(error)})", file=path, remedy=remedy) from error


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "not UTF-8" if isinstance(error, UnicodeDecodeError) else "no name of a file"


def _parsed(text: str, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+)", str(error))
        line = int(found.group(1)) if found else text.count("\n") + 1
        what = re.sub(r"\s*\(at .*\)$", "", str(error))
        raise ConfigError(f"not TOML: {what}", file=file, line=line, remedy="correct this line") from error
    except (ValueError, RecursionError) as error:  # what the reader of TOML has no error of its own for
        what = "a number has too many digits" if isinstance(error, ValueError) else "values are nested too deeply"
        raise ConfigError(what, file=file, remedy="no key of ours takes such a value") from error


def find_lines(text: str) -> dict[Path, int]:
    """The line of every table and key of a TOML text, by path; elements of arrays of tables are numbered from 0."""
    lines: dict[Path, int] = {}
    sizes: dict[Path, int] = {}
    table: Path = ()
    quote = ""
    for number, line in enumerate(text.split("\n"), 1):
        if quote:
            quote = "" if quote in line else quote
            continue
        bare = line.strip()
        if header := _HEADER.fullmatch(bare):
            table = _table_path(_parts(header.group(2)), sizes, is_array=header.group(1) == "[[")
            lines.setdefault(table, number)
        elif key := _KEY.match(bare):
            lines.setdefault((*table, *_parts(key.group(1))), number)
            opened = [mark for mark in ('"""', "'''") if bare.count(mark) % 2]
            quote = opened[0] if opened else ""
    return lines


def _parts(dotted: str) -> list[str]:
    """The parts of a dotted key, quotes taken off by the TOML reader itself; the text as it is when it is no key."""
    try:
        value: object = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return [dotted]
    parts = []
    while isinstance(value, dict) and value:
        (name, value), *_ = value.items()
        parts.append(name)
    return parts


def _table_path(parts: list[str], sizes: dict[Path, int], *, is_array: bool) -> Path:
    path: Path = ()
    for place, part in enumerate(parts):
        path = (*path, part)
        if is_array and place == len(parts) - 1:
            sizes[path] = sizes.get(path, 0) + 1
        if path in sizes:
            path = (*path, sizes[path] - 1)
    return path


def _override(raw: dict[str, Any], environ: Mapping[str, str], origin: _Origin) -> None:
    """Puts the variables NACOSDNS_SECTION_KEY over what the file says."""
    for variable in sorted(environ):
        word = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        section = next((name for name in _SECTIONS if word.startswith(f"{name}_")), "")
        key = word.removeprefix(f"{section}_")
        if not variable.startswith(ENVIRONMENT_PREFIX) or key.startswith(_KUBERNETES_KEYS):
            continue
        if section or word == "static_file":
            _refuse_bytes(variable, environ[variable])
        if word == "static_file":
            raw[word] = environ[variable]
            origin.variables[word,] = variable
        elif section == "zone":
            _override_zone(raw, key, environ[variable], variable, origin)
        elif section:
            table = raw.setdefault(section, {})
            if isinstance(table, dict):
                table[key] = environ[variable]
                origin.variables[section, key] = variable


def _refuse_bytes(variable: str, value: str) -> None:
    """Bytes that are not UTF-8 are in the environment as half characters, which cannot be said to a child."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ConfigError("is not UTF-8", file="environment", key=variable, remedy="write it in UTF-8") from error


def _override_zone(raw: dict[str, Any], key: str, value: str, variable: str, origin: _Origin) -> None:
    tables = raw.setdefault("zone", [{}])
    if not isinstance(tables, list) or len(tables) != 1 or not isinstance(tables[0], dict):
        what = "cannot say which zone it means"
        raise ConfigError(
            what, file="environment", key=variable, remedy="have exactly one [[zone]], or none, in the file"
        )
    tables[0][key] = value
    origin.variables["zone", 0, key] = variable


def _build(raw: dict[str, Any], origin: _Origin) -> Config:
    hints = typing.get_type_hints(Config, include_extras=True)
    _refuse_unknown(raw, _TOP_KEYS, (), origin, near=_dotted_keys(hints))
    values: dict[str, Any] = {}
    for name in ("server", "nacos", "cache", "forward", "web", "log", "host"):
        if name in raw:
            values[name] = _section(hints[name], raw[name], (name,), origin)
    for name in (*_TABLES, "static_file"):
        if name in raw:
            values[name] = _value(raw[name], hints[name], (name,), origin)
    if "zone" in raw:
        tables = _tables(raw["zone"], ("zone",), origin)
        values["zones"] = tuple(
            _section(ZoneSection, table, ("zone", number), origin) for number, table in enumerate(tables)
        )
    if "policy" in raw:
        values |= _policies(raw["policy"], origin)
    return Config(**values, static=_statics(raw, origin))


def _policies(raw: object, origin: _Origin) -> dict[str, Any]:
    """[policy] and its sub-tables; a sub-table takes from [policy] what it does not say itself."""
    table = _table(raw, ("policy",), origin)
    base = {key: value for key, value in table.items() if not isinstance(value, dict)}
    special = {key: value for key, value in table.items() if isinstance(value, dict)}
    policy = _section(PolicySection, base, ("policy",), origin)
    policies = {}
    for pattern, own in special.items():
        section = _section(PolicySection, own, ("policy", pattern), origin)
        policies[pattern] = msgspec.structs.replace(policy, **{key: getattr(section, key) for key in own})
    return {"policy": policy, "policies": policies}


def _statics(raw: dict[str, Any], origin: _Origin) -> tuple[Static, ...]:
    tables = _tables(raw.get("static", []), ("static",), origin)
    return tuple(_section(Static, table, ("static", number), origin) for number, table in enumerate(tables))


def _section(cls: type[_Section], raw: object, path: Path, origin: _Origin) -> _Section:
    """One table as its type; every key is converted on its own, so that an error knows its key."""
    table = _table(raw, path, origin)
    hints = typing.get_type_hints(cls, include_extras=True)
    _refuse_unknown(table, hints, path, origin)
    values = {}
    for key, value in table.items():
        if cls is Static and key == "instances":
            rows = _tables(value, (*path, key), origin)
            values[key] = tuple(
                _section(StaticInstance, row, (*path, key, number), origin) for number, row in enumerate(rows)
            )
        else:
            values[key] = _value(value, hints[key], (*path, key), origin)
    for field in msgspec.structs.fields(cls):  # type: ignore[arg-type]  # every section is a Struct
        if field.required and field.name not in values:
            raise origin.error((*path, field.name), "is missing", "every table of this kind needs it")
    return cls(**values)


def _value(value: object, hint: Any, path: Path, origin: _Origin) -> Any:  # noqa: ANN401  # any type that a field has
    """One value as the type of its field. The environment has only text: lists are split at commas."""
    from_text = path in origin.variables
    if from_text and typing.get_origin(typing.get_args(hint)[0]) is tuple:
        value = [part.strip() for part in str(value).split(",") if part.strip()]
    if isinstance(value, int) and value.bit_length() > _INTEGER_BITS_MAX:
        raise origin.error(path, "is too large a number", _meaning(hint))
    try:
        return msgspec.convert(value, hint, strict=not from_text)
    except msgspec.ValidationError as error:
        raise origin.error(path, str(error).partition(" - at ")[0], _meaning(hint)) from error


def _meaning(hint: Any) -> str:  # noqa: ANN401  # any type that a field has
    notes = [note.description for note in getattr(hint, "__metadata__", ()) if note.description]
    return f"it means: {notes[0]}" if notes else ""


def _table(raw: object, path: Path, origin: _Origin) -> dict[str, Any]:
    if isinstance(raw, dict):
        return raw
    raise origin.error(path, "is not a table", f"write it as [{path[0]}] with keys below it")


def _tables(raw: object, path: Path, origin: _Origin) -> list[object]:
    if isinstance(raw, list):
        return raw
    raise origin.error(path, "is not a list of tables", f"write [[{path[0]}]] with keys below it")


def _dotted_keys(hints: Mapping[str, type]) -> list[str]:
    """``server.listen`` and so on: what a key means that stands above every table."""
    return [f"{name}.{key}" for name in _SECTIONS if name in hints for key in typing.get_type_hints(hints[name])]


def _refuse_unknown(
    table: Mapping[str, object], known: Iterable[str], path: Path, origin: _Origin, *, near: Iterable[str] = ()
) -> None:
    names = list(known)
    for key in table:
        if key not in names:
            import difflib  # noqa: PLC0415  # only a wrong configuration needs it

            nearest = difflib.get_close_matches(key, [*names, *near], n=1, cutoff=0.0)[0]
            raise origin.error((*path, key), "is not a known key", f'did you mean "{nearest}"?')


def _refuse(faults: Iterable[Complaint], origin: _Origin) -> None:
    for fault in faults:
        raise origin.error(fault.path, fault.what, fault.remedy)


def _quoted(part: str) -> str:
    return part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else f'"{part}"'
