"""Remove secrets and personal data from text, whoever wrote them into it. Pure.

A secret is searched in every spelling that programs give it, and by windows of `WINDOW` characters, so that
a piece of one is found as well: logs and reasons are cut at any place. All patterns have bounded repetitions,
so that the time grows with the text alone.
"""

import base64
import ipaddress
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from html import escape
from itertools import pairwise
from urllib.parse import quote, quote_from_bytes, quote_plus

REMOVED = "[secret removed]"
WINDOW = 12  # characters of a spelling that are enough to recognise it
LEAST_CHARS = 8  # shorter secrets are not searched: they would be found in ordinary words
_BASE64_BYTES, _BASE32_BYTES = 3, 5  # of a group, whose bytes share characters
# The beginning of a word, also after `%3D` or `\n` in text that is escaped.
_BEGIN = r"(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{2})|(?<=\\[nrt]))"
_SECRET_NAME = (
    r"(?:api[_-]?key|access[_-]?key|private[_-]?key|token|secret|passw(?:or)?d|passphrase|pwd|credentials?"
    r"|signature|cookie|x-api-key)"
)
_PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}(?:PRIVATE KEY|CERTIFICATE)[A-Z ]{0,20}-----"
    r"(?:(?:\s|\\[nr]){0,8}[A-Za-z0-9+/=]{16,100}){0,200}"
    r"(?:(?:\s|\\[nr]){0,8}[A-Za-z0-9+/=]{0,100}(?:\s|\\[nr]){0,8}-----END [A-Z0-9 ]{0,60}-----)?"
)
_WORDS = re.compile(
    "|".join(
        (
            rf"{_BEGIN}meshdroot\d{{1,2}}(?:[ -]?[a-z2-7]{{1,4}}){{2,80}}",
            rf"{_BEGIN}meshd(?:reply|root)?\d{{1,2}}[a-z2-7]{{8,400}}",
            rf"{_BEGIN}sk-[A-Za-z0-9_-]{{8,300}}",
            rf"{_BEGIN}hf_[A-Za-z0-9]{{8,300}}",
            rf"{_BEGIN}(?:gh[pousr]|github_pat|glpat|xox[a-z])[_-][A-Za-z0-9_-]{{16,300}}",
            rf"{_BEGIN}AKIA[0-9A-Z]{{16}}",
            rf"{_BEGIN}eyJ[A-Za-z0-9_-]{{8,200}}+\.[A-Za-z0-9_-]{{8,4000}}+(?:\.[A-Za-z0-9_-]{{0,4000}}+)?",
        )
    ),
    re.IGNORECASE,
)
_AFTER_NAMES = re.compile(
    rf"({_SECRET_NAME}[\"'\\]{{0,3}}\s{{0,2}}[=:]\s{{0,2}}[\"'\\]{{0,3}})"
    r"(?!\[|\d[\d.]{0,20}(?![\w-]))[^\s\"'&,;\\]{4,400}",
    re.IGNORECASE,
)
# An option of a command line, as words or as a list of them.
_AFTER_OPTIONS = re.compile(
    rf"(--[a-z0-9_-]{{0,40}}?{_SECRET_NAME}[\"']?,?\s{{1,3}}[\"']?)(?![\[-])[^\s\"'`,;\\]{{6,400}}",
    re.IGNORECASE,
)
_AUTHORIZATION = re.compile(
    r"(authorization[\"'\\]{0,3}\s{0,2}[=:]\s{0,2}[\"'\\]{0,3}|bearer\s{1,3})"
    r"((?:bearer|basic|digest|token)\s{1,3})?+(?!\[)[^\s\"',;\\]{6,400}",
    re.IGNORECASE,
)
_USER_OF_URL = re.compile(r"(?<=://)(?!\[)[^\s/@\"'<>]{1,300}@")
_QUERY_OF_URL = re.compile(r"(?<=://)([^\s?\"'<>]{1,1000}+)\?[^\s\"'<>]{1,4000}")
# A host in a URL, or of a relay in a log or status; of services that everybody uses the name stays.
_NAMED_HOST = re.compile(
    r"(?:(?<=://)|(?<=@)|(?<=remote=)|(?<=remote\": \")|(?<=remote: ))"
    r"(?!(?:huggingface\.co|hf\.co|github\.com|stun\.cloudflare\.com|stun\.l\.google\.com)(?![\w.-]))"
    r"(?:[a-z0-9][a-z0-9-]{0,62}\.){1,8}[a-z][a-z0-9-]{1,62}(?![\w-])",
    re.IGNORECASE,
)
LOCAL_NAMES = (".local", ".lan", ".internal", ".home", ".arpa", ".localdomain")
_IPV4 = re.compile(rf"{_BEGIN}(?<!\.)(?<!\d)(?:\d{{1,3}}\.){{3}}\d{{1,3}}(?!\d|\.\d)")
# Also after a word and a colon, and before a colon: `cannot reach ADDRESS: timed out`.
_IPV6 = re.compile(
    r"(?:(?<![0-9A-Za-z:])|(?<=\\[nrt])|(?<=[0-9A-Za-z]:)(?!:))"
    r"(?:[0-9A-Fa-f]{0,4}:){2,7}(?:(?:\d{1,3}\.){3}\d{1,3}|[0-9A-Fa-f]{0,4})(?<![^:]:)(?![0-9A-Za-z])"
)
# Addresses that say nothing about a place, and that a fault of the network is found by.
_LOCAL = tuple(
    map(
        ipaddress.ip_network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.168.0.0/16", "224.0.0.0/4", "255.255.255.255/32"),
            *("::/127", "fe80::/10", "fc00::/7", "ff00::/8"),
        ),
    )
)
_OTHER_HOMES = re.compile(r"(?:/var)?/(?:home|Users)/[^/\s\"'`:,;()\[\]]{1,64}")


def spellings(secret: bytes) -> set[str]:
    """Return the ways in which programs write a secret, in lower case."""
    found = {
        secret.hex(),
        ":".join(f"{byte:02x}" for byte in secret),
        "".join(f"\\x{byte:02x}" for byte in secret),
        "".join(f"%{byte:02x}" for byte in secret),
        quote_from_bytes(secret, safe=""),
        repr(secret)[2:-1],
        *_aligned(base64.b64encode, secret, _BASE64_BYTES),
        *_aligned(base64.urlsafe_b64encode, secret, _BASE64_BYTES),
        *_aligned(base64.b32encode, secret, _BASE32_BYTES),
    }
    try:
        text = secret.decode()
    except UnicodeDecodeError:
        return set(map(_folded, found))
    escaped = json.dumps(text)[1:-1]
    found |= {text, escaped, json.dumps(escaped)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    found |= {quote(text), quote_plus(text), escape(text), repr(text)[1:-1]}
    return set(map(_folded, found))


def _aligned(encode: Callable[[bytes], bytes], secret: bytes, group: int) -> Iterator[str]:
    """Yield the characters that belong to the secret alone, wherever it begins in what is encoded."""
    bits = 8 * group // (len(encode(bytes(group))))
    for before in range(group):
        text = encode(bytes(before) + secret).decode()
        yield text[-(-8 * before // bits) : 8 * (before + len(secret)) // bits]


def _folded(text: str) -> str:
    """Return the text in lower case, each character in its place."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(low if len(low := char.lower()) == 1 else char for char in text)


class Scrubber:
    """Removes the secrets that it is given and counts what it has removed.

    `homes` become `~`, as do names of `users`; public addresses and `hosts` become names such as `ip4-1`,
    the same everywhere.
    """

    def __init__(
        self,
        secrets: Iterable[bytes],
        *,
        homes: Collection[str] = (),
        users: Collection[str] = (),
        hosts: Collection[str] = (),
    ) -> None:
        self.removed = 0
        self.too_short = 0
        self._addresses: dict[str, str] = {}
        self._hosts: dict[str, str] = {}
        self._windows: dict[int, set[str]] = {}
        for secret in set(secrets):
            if len(secret) < LEAST_CHARS:
                self.too_short += 1
            else:
                self._add(spellings(secret))
        self._homes = _any_of(homes, before="", after=r"(?![\w.-])")
        self._users = _any_of(users, before=_BEGIN, after="(?![A-Za-z0-9])")
        self._known_hosts = _any_of(hosts, before=_BEGIN, after="(?![A-Za-z0-9])")

    def _add(self, texts: Iterable[str]) -> None:
        for text in texts:
            if (size := min(WINDOW, len(text))) >= LEAST_CHARS:
                windows = self._windows.setdefault(size, set())
                windows.update(text[at : at + size] for at in range(len(text) - size + 1))

    @property
    def addresses(self) -> int:
        """The number of different addresses that were masked."""
        return len(self._addresses)

    @property
    def hosts(self) -> int:
        """The number of different host names that were masked."""
        return len(self._hosts)

    def scrub(self, text: str) -> str:
        """Return the text without secrets, public addresses, and names of people."""
        text = self._without_values(text)
        text = _PEM.sub(self._remove, text)
        text = _WORDS.sub(self._remove, text)
        text = _USER_OF_URL.sub(lambda _: f"{self._removal()}@", text)
        text = _QUERY_OF_URL.sub(r"\1?[removed]", text)
        text = _AUTHORIZATION.sub(lambda found: f"{found[1]}{found[2] or ''}{self._removal()}", text)
        text = _AFTER_OPTIONS.sub(lambda found: f"{found[1]}{self._removal()}", text)
        text = _AFTER_NAMES.sub(lambda found: f"{found[1]}{self._removal()}", text)
        text = _IPV4.sub(self._mask, _IPV6.sub(self._mask, text))  # the former may contain the latter
        text = _NAMED_HOST.sub(self._mask_host, text)
        if self._known_hosts is not None:
            text = self._known_hosts.sub(self._mask_host, text)
        if self._homes is not None:
            text = self._homes.sub("~", text)
        text = _OTHER_HOMES.sub("~", text)
        return text if self._users is None else self._users.sub("~", text)

    def _removal(self) -> str:
        self.removed += 1
        return REMOVED

    def _remove(self, _found: re.Match[str]) -> str:
        return self._removal()

    def _without_values(self, text: str) -> str:
        """Return the text without any window of a known secret; windows that touch are one secret."""
        folded = _folded(text)
        hits = sorted(
            (at, at + size)
            for size, windows in self._windows.items()
            for at in range(len(folded) - size + 1)
            if folded[at : at + size] in windows
        )
        spans: list[tuple[int, int]] = []
        for start, end in hits:
            if spans and start <= spans[-1][1]:
                spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
            else:
                spans.append((start, end))
        self.removed += len(spans)
        edges = [(0, 0), *spans, (len(text), len(text))]
        return REMOVED.join(text[before[1] : after[0]] for before, after in pairwise(edges))

    def _mask(self, found: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(found[0])
        except ValueError:
            return found[0]  # a time, a version, a name of C++
        inner = getattr(address, "ipv4_mapped", None) or address
        if any(inner in network for network in _LOCAL if network.version == inner.version):
            return found[0]
        known = self._addresses
        return known.setdefault(str(inner), f"ip{inner.version}-{len(known) + 1}")

    def _mask_host(self, found: re.Match[str]) -> str:
        if found[0].lower().endswith(LOCAL_NAMES):
            return found[0]
        return self._hosts.setdefault(found[0].lower(), f"host-{len(self._hosts) + 1}")


def _any_of(words: Collection[str], *, before: str, after: str) -> re.Pattern[str] | None:
    """Return a pattern of these words, the longest first; None without any."""
    ordered = sorted({word for word in words if word}, key=len, reverse=True)
    if not ordered:
        return None
    return re.compile(f"{before}(?:{'|'.join(map(re.escape, ordered))}){after}", re.IGNORECASE)
