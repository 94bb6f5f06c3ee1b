"""What is removed from a report: known secrets in each spelling, and whatever looks like one."""

import base64
import html
import json
import string
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.report.scrub import REMOVED, WINDOW, Scrubber

WORD = "q7Zr+/w=Kd93&mXp"
BYTES = bytes(range(200, 232))
TEXTS: tuple[Callable[[str], str], ...] = (
    str,
    str.upper,
    quote,
    quote_plus,
    lambda word: quote(word, safe=""),
    html.escape,
    json.dumps,
    lambda word: json.dumps(json.dumps({"x": word})),
    lambda word: word.encode().hex(),
    lambda word: base64.b64encode(word.encode()).decode(),
    lambda word: base64.urlsafe_b64encode(f"user:{word}".encode()).decode(),
    lambda word: base64.b64encode(f"a{word}b".encode()).decode(),
    lambda word: base64.b32encode(word.encode()).decode(),
)
RAW: tuple[Callable[[bytes], str], ...] = (
    bytes.hex,
    lambda raw: raw.hex().upper(),
    lambda raw: raw.hex(":"),
    repr,
    quote,
    lambda raw: base64.b64encode(raw).decode(),
    lambda raw: base64.urlsafe_b64encode(raw).decode().rstrip("="),
    lambda raw: base64.b64encode(b"?" + raw + b"!").decode(),
    lambda raw: base64.b32encode(b"???" + raw).decode().lower(),
)
PLAIN = st.text(st.characters(codec="utf-8"), max_size=200)
SECRETS = st.text(string.ascii_letters + string.digits + '+/=&%-_.~"\\é', min_size=WINDOW, max_size=80)


@pytest.mark.parametrize("spell", TEXTS)
def test_a_word_is_removed_in_each_spelling(spell: Callable[[str], str]) -> None:
    spelled = spell(WORD)
    scrubber = Scrubber([WORD.encode()])
    text = scrubber.scrub(f"before {spelled} after")
    assert REMOVED in text and text.startswith("before ") and text.endswith(" after")
    assert scrubber.removed == 1
    assert len(text) <= len(f"before {REMOVED} after") + 16, "hardly anything of it is left"


@pytest.mark.parametrize("spell", RAW)
def test_a_key_is_removed_in_each_spelling(spell: Callable[[bytes], str]) -> None:
    text = Scrubber([BYTES]).scrub(f"before {spell(BYTES)} after")
    assert REMOVED in text and len(text) <= len(f"before {REMOVED} after") + 14


@given(secret=SECRETS, before=PLAIN, after=PLAIN, spell=st.sampled_from(TEXTS))
def test_no_window_of_a_secret_is_left(
    secret: str, before: str, after: str, spell: Callable[[str], str]
) -> None:
    spelled = spell(secret)
    scrubbed = Scrubber([secret.encode()]).scrub(before + spelled + after).lower()
    assert secret.lower() not in scrubbed
    assert spelled.lower() not in scrubbed


@given(secret=SECRETS, cut=st.integers(0, 60))
def test_a_piece_of_a_secret_is_removed(secret: str, cut: int) -> None:
    """Logs are cut in the middle of a line."""
    piece = secret[cut : cut + WINDOW]
    scrubbed = Scrubber([secret.encode()]).scrub(f"<{piece}>")
    assert len(piece) < WINDOW or piece not in scrubbed


@given(text=PLAIN, secret=SECRETS)
def test_what_was_scrubbed_stays_as_it_is(text: str, secret: str) -> None:
    once = Scrubber([secret.encode()], users=["zoltan"]).scrub(text)
    assert Scrubber([secret.encode()], users=["zoltan"]).scrub(once) == once


def test_text_without_secrets_is_unchanged() -> None:
    text = (
        "2026-11-27T09:28:17.638Z [info] link_up link=tcp name=gpu1 peer=27yle3kcfm remote=192.168.1.11:336\n"
        "bytes_per_token: 2400.5, tokens: 42, 0.5.0, std::vector<x::y>, 12:34:56, task-list-of-things\n"
        "ggml_cuda_init: found 1 CUDA devices; driver 570.124.06; disk-cache-room; hf:unsloth/Qwen3-4B-GGUF\n"
    )
    scrubber = Scrubber([WORD.encode()], users=["zoltan"], homes=["/home/zoltan"])
    assert scrubber.scrub(text) == text
    assert (scrubber.removed, scrubber.addresses, scrubber.hosts) == (0, 0, 0)


@pytest.mark.parametrize(
    "secret",
    [
        "meshd1aabcdefghijklmnop234567",
        "MESHD1AABCDEFGHIJKLMNOP234567",
        "meshdreply1aabcdefghijklmnop",
        "meshdroot1 abcd efgh ijkl mnop 2345",
        "meshdroot1-abcd-efgh-ijkl",
        "sk-proj-0123456789abcdef",
        "hf_0123456789abcdefABCDEF",
        "ghp_0123456789abcdefABCDEF",
        "eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSMeKKF2QT4",
        "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA\nabcd=\n-----END PRIVATE KEY-----",
        "-----BEGIN OPENSSH PRIVATE KEY-----\\nb3BlbnNzaC1rZXktdjEAAAA\\n-----END OPENSSH PRIVATE KEY-----",
    ],
)
@pytest.mark.parametrize("around", ["x '{}' y", "?a%3D{}&b", '{{"why": "no\\n{}"}}', "{}"])
def test_what_looks_like_a_secret_is_removed(secret: str, around: str) -> None:
    scrubber = Scrubber(())
    text = scrubber.scrub(around.format(secret))
    assert scrubber.removed == 1
    assert not any(piece in text for piece in (secret[8:20], secret[-6:]))


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("Authorization: Bearer abcdefgh12", f"Authorization: Bearer {REMOVED}"),
        ("proxy-authorization=Basic dXNlcjpwYXNz", f"proxy-authorization=Basic {REMOVED}"),
        ('{"api_key": "abcdef"}', f'{{"api_key": "{REMOVED}"}}'),
        ("password=hunter22;", f"password={REMOVED};"),
        ("http://u:p4ss@proxy.lan:3128/x", f"http://{REMOVED}@proxy.lan:3128/x"),
        ("https://h.lan/m?X-Amz-Signature=abc#f", "https://h.lan/m?[removed]"),
        ("token=[redacted]", "token=[redacted]"),
        ("--api-key abcd1234efgh -ngl 9", f"--api-key {REMOVED} -ngl 9"),
        ("['--hf-token', 'abcd1234efgh']", f"['--hf-token', '{REMOVED}']"),
        ("--api-key --no-webui --api-key-file keys.txt", "--api-key --no-webui --api-key-file keys.txt"),
    ],
)
def test_the_words_around_a_secret_stay(text: str, scrubbed: str) -> None:
    assert Scrubber(()).scrub(text) == scrubbed


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("8.8.4.4:17430 and 8.8.4.4, 9.9.9.9", "ip4-1:17430 and ip4-1, ip4-2"),
        ("[2001:db8:1::2]:443 2001:DB8:1::2", "[ip6-1]:443 ip6-1"),
        ("dial 2001:db8:1::2: timed out", "dial ip6-1: timed out"),
        ("2001:db8:1:0:0:0:0:2: refused", "ip6-1: refused"),
        ("2001:db8:1:0:0:0:0:2:443", "ip6-1:443"),
        ("quic:2001:db8:1::2", "quic:ip6-1"),
        ("at 10:22:12:33 std::add::all", "at 10:22:12:33 std::add::all"),
        ("remote=::ffff:93.184.216.34", "remote=ip4-1"),
        ("'93.184.216.34'.", "'ip4-1'."),
        *(
            (kept, kept)
            for kept in (
                *("127.0.0.1", "10.1.2.3", "172.31.0.1", "192.168.1.5:80", "100.64.1.1", "169.254.0.7"),
                *("0.0.0.0:0", "[::1]:80", "fe80::1%eth0", "fd00::1", "ff02::fb", "::"),
            )
        ),
    ],
)
def test_public_addresses_get_names_and_private_ones_stay(text: str, scrubbed: str) -> None:
    assert Scrubber(()).scrub(text) == scrubbed


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("/home/zoltan/.local", "~/.local"),
        ("/data/zoltan/m.gguf", "/data/~/m.gguf"),
        ("Zoltan-desktop", "~-desktop"),
        ("file=%2Fhome%2Fzoltan%2Fx", "file=%2Fhome%2F~%2Fx"),
        ("/Users/somebody/x", "~/x"),
        ("zoltanic", "zoltanic"),
    ],
)
def test_names_of_people_are_a_tilde(text: str, scrubbed: str) -> None:
    assert Scrubber((), homes=["/home/zoltan"], users=["zoltan"]).scrub(text) == scrubbed


def test_hosts_get_names_too() -> None:
    scrubber = Scrubber((), hosts=["relay.example.org", "example.org"])
    assert scrubber.scrub("RELAY.example.org:1 example.org") == "host-1:1 host-2"
    assert scrubber.hosts == 2


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("relay://key@relay.example.org:443", f"relay://{REMOVED}@host-1:443"),
        ("https://api.example.org/v1?a=b", "https://host-1/v1?[removed]"),
        ("remote=a.example.org:443 x.example.org", "remote=host-1:443 x.example.org"),
        ('{"remote": "a.example.org:443"}', '{"remote": "host-1:443"}'),
        *(
            (kept, kept)
            for kept in ("https://huggingface.co/x", "http://box.lan:80/", "http://127.0.0.1:8090")
        ),
    ],
)
def test_hosts_of_urls_and_relays_get_names(text: str, scrubbed: str) -> None:
    assert Scrubber(()).scrub(text) == scrubbed


def test_a_short_secret_is_counted_and_does_not_blank_words() -> None:
    scrubber = Scrubber([b"abc"])
    assert scrubber.scrub("abc abcdef") == "abc abcdef"
    assert scrubber.too_short == 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "unit",
    [
        *(
            "eyJ-",
            "sk-",
            "://",
            "a@",
            "-----BEGIN PRIVATE KEY-----",
            "meshdroot1 ",
            "bearer ",
            "1.1.1.1",
            "a:",
        ),
        *("token=", "abcdefghijklmnopq\n", "::", "/home/", "?", "://a?", "--token", "x" * 50 + " "),
    ],
)
def test_no_text_takes_long(unit: str) -> None:
    """Quadratic time would be minutes."""
    text = unit * ((1 << 19) // len(unit))
    scrubber = Scrubber([WORD.encode()], homes=["/home/zoltan"], users=["zoltan"], hosts=["a.example.org"])
    assert scrubber.scrub(f"{text} {WORD}").endswith(f" {REMOVED}")


def test_a_fake_key_without_an_end_blanks_nothing_else() -> None:
    text = "name: -----BEGIN PRIVATE KEY-----\n" + "peer: a name of something\n" * 50
    scrubbed = Scrubber(()).scrub(text)
    assert scrubbed.count("peer: a name of something") == 50
