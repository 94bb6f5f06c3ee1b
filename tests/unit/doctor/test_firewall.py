"""Rules of nftables: which of them keep others from a port."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.doctor.firewall import lets_in

BEGIN = "table inet filter {\n\tchain input {\n\t\ttype filter hook input priority filter; policy "
USUAL = '\t\tct state established,related accept\n\t\tiif "lo" accept\n\t\ticmp type echo-request accept\n'


def _rules(*rules: str, policy: str = "drop", more: str = "") -> list[str]:
    text = (
        BEGIN + f"{policy};\n" + USUAL + "".join(f"\t\t{rule}\n" for rule in rules) + "\t}\n" + more + "}\n"
    )
    return text.splitlines()


@pytest.mark.parametrize(
    "rules",
    [
        _rules(),
        _rules("tcp dport 22 accept"),
        _rules("tcp dport { 22, 80, 100-200 } counter packets 5 bytes 300 accept"),
        _rules("counter packets 0 bytes 0 reject with icmpx type port-unreachable", policy="accept"),
        _rules("jump more", more="\tchain more {\n\t\ttcp dport 80 accept\n\t}\n"),
        _rules("drop", "tcp dport 17430 accept"),
    ],
    ids=["nothing", "another port", "other ports", "rejected at the end", "another chain", "too late"],
)
def test_closed(rules: list[str]) -> None:
    assert not lets_in(rules, 17430)


@pytest.mark.parametrize(
    "rules",
    [
        [],
        ["table inet filter {", "}"],
        _rules(policy="accept"),
        _rules("tcp dport 17430 accept"),
        _rules("tcp dport { 22, 17000-18000 } counter packets 5 bytes 300 accept"),
        _rules("ip saddr 192.168.0.0/16 accept"),
        _rules('iifname "wg0" accept'),
        _rules("ct state new tcp dport 17430 accept"),
        _rules("tcp dport @open accept"),
        _rules("jump more", more="\tchain more {\n\t\tudp dport 17430 accept\n\t}\n"),
        _rules("jump input", "accept"),
        [line.replace("hook input", "hook forward") for line in _rules()],
    ],
)
def test_open_or_unclear(rules: list[str]) -> None:
    assert lets_in(rules, 17430)


WORDS = (
    "chain input {",
    "type filter hook input priority 0; policy drop;",
    "}",
    "accept",
    "drop",
    "jump input",
)


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=60), max_size=30), st.integers(1, 65535))
def test_whatever_is_printed(lines: list[str], port: int) -> None:
    assert lets_in(lines, port) in (True, False)
