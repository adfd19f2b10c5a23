"""Hide secrets in everything that nodesweep writes, because reports, records and logs get shared.

It hides (1) every value of a container's environment and of an image's build arguments, except in a
request shown before it is sent; (2) every string whose name suggests a secret; (3) any part of a
string that has the shape of a secret. The shapes come from detect-secrets 1.5.0 (its
plugins for AWS, GitHub, GitLab, JWT, npm, OpenAI, private keys, PyPI, SendGrid, Slack, Stripe,
Telegram) and the issuers' documentation; the library itself is not used because it scans files and
brings in an HTTP client.
"""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.section import HIDDEN, MAY_BE_SECRET, SHOWN, marked_values
from nodesweep.configs.url_users import hide_url_users, url_users

CLOSED_SECTIONS = frozenset(
    {"environment", "Environment", "build_args", "environmentVariablesOverride"}
)
"""Mappings in configs and in SageMaker and CodeBuild requests whose values are never shown."""

# HF_TOKEN, wandb-api-key, authToken, PGPASSWORD and DB_PASS are secret names; tokenizer and
# max_tokens are not.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS = frozenset(
    {"token", "secret", "secrets", "password", "passwords", "passwd", "passphrase", "pass",
     "pwd", "apikey", "apikeys", "pat", "auth", "authorization", "bearer", "jwt", "cookie",
     "cookies", "webhook", "webhooks", "dsn", "pin", "creds", "credentials"}
)  # fmt: skip
_WORDS_OF_PROSE = frozenset({"pass", "pat", "pin", "auth", "bearer", "credentials", "creds"})
"""Secret names that logs also use as ordinary words, as in "second pass: done"."""
_SECRET_ENDINGS = (
    "token", "secret", "password", "passwords", "passwd", "passphrase", "pass", "pwd", "apikey",
    "accesskey",
)  # fmt: skip
_PASSWORDS = ("password", "passwords", "passwd", "passphrase", "pwd", "secret")
"""Name endings under which even a number is a secret."""
_OPEN_WORDS = frozenset(
    {"compass", "bypass", "encompass", "surpass", "trespass", "underpass", "overpass"}
)
_KEY_KINDS = frozenset(
    {"api", "access", "private", "secret", "auth", "account", "encryption", "signing", "ssh",
     "deploy", "license", "shared", "master", "storage", "wandb", "openai", "anthropic",
     "huggingface", "hf", "github", "gitlab", "comet", "neptune", "mlflow", "azure", "stripe",
     "sendgrid"}
)  # fmt: skip
_OPEN_KEY_KINDS = frozenset(
    {"s3", "3", "object", "primary", "foreign", "public", "sort", "partition", "cache", "index",
     "metric", "group", "column"}
)  # fmt: skip
"""Values of FOO for which a variable named FOO_KEY holds no secret."""

_NAMED = re.compile(
    # name=, name ->, <name>, "name": (nested JSON escapes the quotes), --name=, --name value and
    # "--name", "value"
    r"(?<![\w.-])(?P<dashes>-{0,2})(?P<name>[A-Za-z_][\w.-]{0,199})(?P<quote>\\{0,3}[\"'])?"
    r"(?P<between>\s*(?:[=:]>?|->|>)\s*|\s*,\s*(?=\\{0,3}[\"'])|\s+(?![\s-]))"
)
_VALUE = re.compile(
    r"\(hidden\)|\\{0,3}\"[^\"]*(?:\"|$)|'[^']*(?:'|$)|\[[^\]]*(?:\]|$)|[^\s,;&<\"'}\])]+"
)
_SCHEME = re.compile(r"(?i)[\"']?(?:bearer|basic|token|digest)\s+")
_NOT_THE_VALUE = re.compile(r"(?i)\(hidden\)|(?:bearer|basic)\b")
_SHORT_NUMBER = re.compile(
    r"(?i)[\"']?(?:[-+]?(?:\d{1,9}(?:\.\d*)?|\d*\.\d+)(?:e[-+]?\d+)?|[-+]?inf|nan)[\"']?"
)
"""Measurements such as loss_per_token=0.5 and token: 17; ten or more digits can be a secret."""

_SHAPES = tuple(
    (re.compile(pattern), shown)
    for pattern, shown in (
        (r"https://hooks\.slack\.com/(?:services|workflows)/\S+", HIDDEN),
        (r"https://(?:\w+\.)?discord(?:app)?\.com/api/webhooks/\S+", HIDDEN),
        (r"https://[\w-]+\.webhook\.office\.com/\S+", HIDDEN),
        (
            r"(?i)(?<=[?&])((?:[\w.-]{0,60}(?:token|secret|password|signature|api_?key)"
            r"|key|sig|auth|code)=)[^&\s\"']+",
            rf"\1{HIDDEN}",
        ),
        (r"(?i)\b(bearer\s+)(?=\S{6})[^\s\"',;]+", rf"\1{HIDDEN}"),
        (r"(?i)\b(basic\s+)(?=[A-Za-z0-9+/]*[\d=])[A-Za-z0-9+/]{8,}={0,2}", rf"\1{HIDDEN}"),
        (r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b", HIDDEN),  # AWS
        (r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}", HIDDEN),
        (r"\bgl(?:pat|dt|ft|rt|cbt)-[\w-]{16,}", HIDDEN),  # GitLab
        (r"\bxox[abeoprs]-[\w-]{10,}|\bxapp-[\w-]{10,}", HIDDEN),  # Slack
        (  # OpenAI, Anthropic: random characters only, not names such as sk-training-images
            r"\bsk-(?:(?=(?:[\w-]{0,80}[_-])?(?=[A-Za-z]{0,19}\d)[A-Za-z0-9]{20})"
            r"|(?=[\w-]{40})(?=[\w-]{0,80}\d)(?=[\w-]{0,80}[A-Z])(?=[\w-]{0,80}[a-z]))[\w-]{20,}",
            HIDDEN,
        ),
        (r"\b[rsp]k_(?:live|test)_\w{10,}|\bwhsec_\w{16,}", HIDDEN),  # Stripe
        (r"\bhf_[A-Za-z0-9]{16,}", HIDDEN),  # Hugging Face
        (r"\bnpm_[A-Za-z0-9]{20,}|\bpypi-[\w-]{20,}|\bdckr_pat_[\w-]{20,}", HIDDEN),
        (r"\bAIza[\w-]{30,}|\bya29\.[\w-]{10,}|\bGOCSPX-[\w-]{10,}", HIDDEN),  # Google
        # SendGrid, Mailgun, Twilio
        (r"\bSG\.[\w-]{10,}\.[\w-]{10,}|\bkey-[0-9a-f]{32}\b|\bSK[0-9a-f]{32}\b", HIDDEN),
        (r"\b\d{8,10}:[\w-]{35}\b", HIDDEN),  # Telegram
        # Groq, HashiCorp Vault, NVIDIA, Databricks
        (r"\bgsk_\w{20,}|\bhv[sbr]\.[\w-]{20,}|\bnvapi-[\w-]{20,}|\bdapi[0-9a-f]{32}", HIDDEN),
        (r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?", HIDDEN),  # JSON Web Token
    )
)
"""(shape, replacement), applied in this order."""

_KEY_EDGE = re.compile(r"-----(?P<edge>BEGIN|END) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=\\ \t\r\n"
MAX_KEY_LINES = 256
"""Maximum number of log lines that are hidden after the BEGIN line of a key without an END line.

A 16,384-bit RSA key has 200 lines of 64 characters.
"""


def hide_secrets(value: Any) -> Any:
    """Return a JSON-like value with its secrets replaced.

    Numbers, booleans and null are unchanged.
    """
    if isinstance(value, Mapping):
        return {key: _hide_entry(str(key), entry) for key, entry in value.items()}
    if isinstance(value, str):
        return hide_in_text(value)
    return [hide_secrets(entry) for entry in value] if isinstance(value, list | tuple) else value


def hide_in_request(
    request: Mapping[str, Any], open_variables: Collection[str] = ()
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a CreateTrainingJob request to show to the user, with its secrets masked.

    Environment values are masked only if their name or shape suggests a secret. Variables named in
    `open_variables` are never masked.

    Returns:
        (request to show, paths of the masked members such as Environment.HF_TOKEN).
    """
    shown = {
        key: hide_secrets(value) if key == "Environment" else _hide_entry(key, value)
        for key, value in request.items()
    }
    environment = request.get("Environment", {})
    for name in open_variables:
        shown["Environment"][name] = environment[name]
    return shown, tuple(_masked(request, shown))


def _masked(sent: Any, shown: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of the strings that differ between the two values."""
    if isinstance(sent, Mapping):
        for key, value in sent.items():
            yield from _masked(value, shown[key], f"{path}.{key}" if path else str(key))
    elif isinstance(sent, list | tuple):
        for index, value in enumerate(sent):
            yield from _masked(value, shown[index], f"{path}[{index}]")
    elif sent != shown:
        yield path


def hide_in_config(config: BenchmarkConfig) -> dict[str, Any]:
    """Return the config as JSON for a record or report that is read back as a config.

    The model hides the environment and build arguments. Of the other fields, only hyperparameters,
    the settings of variants and expectation arguments are masked. Buckets, names, tags, channels
    and patterns are unchanged.
    """
    plain = config.model_dump(mode="json")
    training = plain["training"]
    training["hyperparameters"] = hide_secrets(training["hyperparameters"])
    for variant in plain["sweep"].get("variants", ()):
        variant["set"] = hide_secrets(variant["set"])
    for expectation in plain["dataset"]["expectations"] if plain["dataset"] else ():
        expectation["kwargs"] = hide_secrets(expectation["kwargs"])
    return plain


def hide_in_text(text: str) -> str:
    """Return the text with everything that has the shape of a secret replaced."""
    text, _ = _without_keys(text, is_in_key=False)
    text = _known.hide(text)
    if "\\" in text:  # JSON and repr() write line ends as \n, which hides word boundaries
        parts = _ESCAPED_SPACE.split(text)
        text = "".join(part if at % 2 else _without_shapes(part) for at, part in enumerate(parts))
    return _without_shapes(text)


_ESCAPED_SPACE = re.compile(r"(\\+[nrt])")


def _without_shapes(text: str) -> str:
    text = _without_named(hide_url_users(text, HIDDEN))
    for shape, shown in _SHAPES:
        text = shape.sub(shown, text)
    return text


def _without_named(text: str) -> str:
    """Return the text with the values of secret names replaced; see is_secret_name()."""
    shown, end = [], 0
    for found in _NAMED.finditer(text):
        if found.start() < end or not _names_a_secret(found):
            continue
        scheme = _SCHEME.match(text, found.end())
        begin = (
            scheme.end()
            if scheme and found["name"].lower().endswith("authorization")
            else found.end()
        )
        value = _VALUE.match(text, begin)
        if value is None or _NOT_THE_VALUE.match(value[0]):
            continue
        if _SHORT_NUMBER.fullmatch(value[0]) and not found["name"].lower().endswith(_PASSWORDS):
            continue
        shown += [text[end:begin], HIDDEN]
        end = value.end()
    return "".join([*shown, text[end:]]) if shown else text


def _names_a_secret(found: re.Match[str]) -> bool:
    """Return True if the match is a secret name that is followed by its value."""
    is_assigned = found["between"].strip().startswith(("=", ":", "-", ">"))
    if not is_assigned and not found["dashes"]:
        return False
    is_prose = found["between"].startswith(":") and not found["quote"] and not found["dashes"]
    name = found["name"]
    return is_secret_name(name) and not (is_prose and name.lower() in _WORDS_OF_PROSE)


class _KnownSecrets:
    """The values passed to remember_secrets(), whatever their shape."""

    def __init__(self) -> None:
        self._forms: set[str] = set()
        self._pattern: re.Pattern[str] | None = None

    def add(self, values: Iterable[str]) -> None:
        """Hide these values from now on, in all forms that _forms_of() returns."""
        forms = {form for value in values for form in _forms_of(value)} - self._forms
        if forms:
            self._forms |= forms
            longest_first = sorted(self._forms, key=lambda form: (-len(form), form))
            self._pattern = re.compile("|".join(map(_as_pattern, longest_first)))

    def hide(self, text: str) -> str:
        """Return the text with the added values replaced."""
        return self._pattern.sub(HIDDEN, text) if self._pattern else text


_known = _KnownSecrets()


def remember_secrets(values: Iterable[str]) -> None:
    """Hide these values in every text from now on: verbatim, escaped, URL-encoded and in Base64.

    Values shorter than MIN_SECRET_CHARACTERS are not hidden, because that would hide ordinary
    words.
    """
    _known.add(values)


def secrets_of(config: BenchmarkConfig) -> list[str]:
    """Return the values of a config that must not appear in any output."""
    closed = marked_values(config, MAY_BE_SECRET)
    arms = [config.of_arm(name) for name in config.arm_names]
    return [
        *(secret for arm in arms for secret in secrets_in(arm.training.hyperparameters)),
        *(value for _, mapping in closed for value in secrets_in(mapping, is_closed=True)),
    ]


def secrets_in(values: Mapping[str, Any], is_closed: bool = False) -> list[str]:
    """Return the strings with secret names, and the passwords in all URLs.

    Args:
        values: Strings and other values by name.
        is_closed: True for a mapping whose values are never shown, such as the environment. Strings
            that look random are then secrets too: 12 or more characters with letters and digits,
            and without slashes or spaces.
    """
    texts = {
        name: value
        for name, value in values.items()
        if isinstance(value, str) and value != HIDDEN and not _VARIABLE.fullmatch(value)
    }
    return [
        *(
            value
            for name, value in texts.items()
            if is_secret_name(name) or (is_closed and _is_random(name, value))
        ),
        *(secret for value in texts.values() for secret in _in_urls(value)),
    ]


def _in_urls(text: str) -> Iterator[str]:
    """Yield the passwords in URLs, or user names that look like tokens, as written and decoded."""
    for start, end in url_users(text):
        user, _, password = text[start:end].partition(":")
        secret = password or (user if _is_random("", user) else "")
        # If the secret contains an @, the text after it could be the host.
        yield from {secret, unquote(secret), secret.partition("@")[0]} - {""}


def secrets_of_job(hyperparameters: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """Return the values of a job's inputs that must not appear in any output."""
    decoded = {name: _decoded(value) for name, value in hyperparameters.items()}
    return [*secrets_in(decoded), *secrets_in(environment, is_closed=True)]


def _decoded(text: str) -> Any:
    """Return a hyperparameter as it was configured; the toolkit encodes every value as JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


MIN_SECRET_CHARACTERS = 4
_WHOLE_WORD_BELOW = 8
"""Length below which a secret is replaced only as a whole word."""
_VARIABLE = re.compile(r"\$\{[^}]*\}")


def _is_random(name: str, value: str) -> bool:
    return (
        not name.startswith(SHOWN)
        and len(value) >= 12
        and re.search(r"\d", value) is not None
        and re.search(r"[A-Za-z]", value) is not None
        and re.search(r"[/\s]", value) is None
    )


def _forms_of(value: str) -> set[str]:
    """Return the forms in which a program could print a value or one of its lines."""
    plain = {value, *(line.strip() for line in value.splitlines())}
    forms = set()
    for one in plain:
        data = one.encode()
        encoded = base64.b64encode(data).decode()
        escaped = json.dumps(one)[1:-1]
        forms |= {one, escaped, json.dumps(escaped)[1:-1], repr(one)[1:-1]}
        forms |= {quote(one, safe=""), quote(one), quote_plus(one), repr(data)[2:-1]}
        forms |= {encoded.rstrip("="), encoded.translate(str.maketrans("+/", "-_")).rstrip("=")}
    return {form for form in forms if len(form) >= MIN_SECRET_CHARACTERS}


def _as_pattern(form: str) -> str:
    pattern = re.escape(form)
    return rf"(?<!\w){pattern}(?!\w)" if len(form) < _WHOLE_WORD_BELOW else pattern


class LogHider:
    """A filter that hides secrets in the lines of one log stream, including multiline private keys.

    Use one instance per stream, because only the preceding lines show that a line belongs to a key.
    """

    def __init__(self) -> None:
        self._key_lines_left = 0

    def hide(self, lines: Iterable[str]) -> list[str]:
        """Return the next lines with their secrets hidden.

        If the lines contain the end of a key but not its beginning, everything up to the end of the
        key is hidden too.
        """
        shown: list[str] = []
        for line in lines:
            was_in_key = self._key_lines_left > 0
            edge = _KEY_EDGE.search(line)
            if not was_in_key and edge and edge["edge"] == "END":
                shown = [*shown[:-MAX_KEY_LINES], *(HIDDEN for _ in shown[-MAX_KEY_LINES:])]
            text, is_in_key = _without_keys(line, was_in_key)
            self._key_lines_left = (
                0
                if not is_in_key
                else self._key_lines_left - 1
                if was_in_key and not edge
                else MAX_KEY_LINES
            )
            shown.append(hide_in_text(text))
        return shown


def _without_keys(text: str, is_in_key: bool) -> tuple[str, bool]:
    """Return the text with its private keys replaced, and True if it ends within a key.

    If the beginning of a key was cut off, everything back to the last character that cannot be part
    of a key is removed.

    Args:
        text: One or more lines.
        is_in_key: True if the text begins within a key.
    """
    parts, end = [HIDDEN] if is_in_key else [], 0
    for edge in _KEY_EDGE.finditer(text):
        before, end = text[end : edge.start()], edge.end()
        begins = edge["edge"] == "BEGIN"
        if not is_in_key:
            parts.append(before if begins else before.rstrip(_KEY_CHARACTERS))
            parts.append(HIDDEN)
        is_in_key = begins
    return "".join(parts if is_in_key else [*parts, text[end:]]), is_in_key


@functools.lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return True if the value of this name must not be shown."""
    words = [word.lower() for word in _WORD.findall(name)]
    pairs = [*pairwise(words)]
    is_variable = name.isupper() and bool(pairs)
    return (
        not _SECRET_WORDS.isdisjoint(words)
        or any(word.endswith(_SECRET_ENDINGS) and word not in _OPEN_WORDS for word in words)
        or any(kind in _KEY_KINDS and key in ("key", "keys") for kind, key in pairs)
        or ("connection", "string") in pairs
        or (is_variable and words[-1] == "key" and words[-2] not in _OPEN_KEY_KINDS)
    )


def _hide_entry(name: str, value: Any) -> Any:
    return (
        _hide_all(value) if name in CLOSED_SECTIONS or is_secret_name(name) else hide_secrets(value)
    )


def _hide_all(value: Any) -> Any:
    """Return the value with every string in it replaced.

    The keys of mappings are unchanged, and so are the names and types in CodeBuild's list of
    variables.
    """
    if isinstance(value, Mapping):
        return {
            key: entry if key in ("name", "type") else _hide_all(entry)
            for key, entry in value.items()
        }
    if isinstance(value, list | tuple):
        return [_hide_all(entry) for entry in value]
    return HIDDEN if isinstance(value, str) else value
