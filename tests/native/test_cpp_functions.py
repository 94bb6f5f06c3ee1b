"""Functions are found however they are written, with their length, and nothing else is taken for one."""

import pytest

from tests.native.cpp_functions import functions

BODY = '{\n    one();\n    if (two) {\n        three("}"); // }\n    }\n}\n'  # of six lines


@pytest.mark.parametrize(
    "signature",
    [
        "static int plain(int a)",
        "TEST(a_test)",
        "void wrapped(int a,\n    int b)",
        "bool values(\n    const std::vector<int> & a = {}, std::function<void()> b = [] { c(); })",
        "thing::thing(int a) : a(a), b{ 1, 2 }, c([this] { d(); })",
        "thing::thing(int a) :\n    a{ a }",
        "template <class Ready, class Other = long (*)()> time look(const Ready & ready)",
        "auto arrow(int a) const noexcept -> std::vector<int>",
        "static enum kind kind_of(const thing & a)",
        "bool thing::operator==(const thing & a) const",
        "struct thing made()",
    ],
)
@pytest.mark.parametrize(
    "scope",
    [
        "{}",
        "namespace mesh {{\n{}}}\n",
        "class a final : public b {{\npublic:\n{}private:\n    int c = 0;\n}};\n",
    ],
    ids=["file", "namespace", "class"],
)
def test_one_is_found_with_its_length(scope: str, signature: str) -> None:
    text = scope.format(f"{signature} {BODY}")
    for before in ("", "enum kind { a, b };\n", "static const char * const table[] = { f(1), { 2 } };\n"):
        (found,) = functions(before + text)
        assert found.lines == 5
        assert found.signature in " ".join(signature.split())
        (longer,) = functions(before + text.replace("    one();\n", "    one();\n" * 60))
        assert longer.lines == 64


def test_one_behind_the_other() -> None:
    text = f"struct a {{\n    int b{{ 1 }};\n    int c() {{ return 1; }}\n    void d()\n    {BODY}}};\n"
    found = [(one.signature, one.lines) for one in functions(f"{text}int e() {BODY}")]
    assert found == [("int c()", 0), ("void d()", 5), ("int e()", 5)]


@pytest.mark.parametrize(
    "text",
    [
        "struct a {\n    int b = f(1);\n};\n",
        "enum class a : u8 { b, c };\n",
        "static const std::map<int, int> a = { { 1, f(2) } };\n",
        "int a(int b);\n",
        "#define A(b) \\\n    void b() { \\\n    }\n",
        "// int a() {\n/* int b() { } */\n",
        "namespace a {}\n",
    ],
)
def test_nothing_else_is_one(text: str) -> None:
    assert list(functions(text)) == []
