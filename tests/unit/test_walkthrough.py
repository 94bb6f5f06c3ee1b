"""Pages are read as a reader would, and what they say is compared with what is seen."""

import pytest

from tests.netns.walkthrough import Awaited, Command, SavedFile, pattern, steps

PAGE = """On **garage**, run

```
$ meshd worker
node    garage, worker
…
```

1. On **desk**, save this as `models.toml`:

   ```toml
   [models.small]
   ```

   and start, then wait:

   ```
   cd meshd
   meshd serve \\
     --config models.toml
   ```

   ```text
   ready
   ```
"""


def test_a_page_says_what_to_do_where() -> None:
    assert list(steps(PAGE, ("garage", "desk"))) == [
        Command("garage", "meshd worker", ("node    garage, worker", "…")),
        SavedFile("desk", "models.toml", "[models.small]\n"),
        Command("desk", "cd meshd"),
        Command("desk", "meshd serve    --config models.toml"),
        Awaited("desk", ("ready",)),
    ]


@pytest.mark.parametrize(
    ("text", "lacking"),
    [
        ("Run\n\n```\nmeshd status\n```\n", "no machine"),
        ("On **desk**:\n\n```toml\na = 1\n```\n", "no name of a file"),
        ("On **desk**:\n\n```\nready\n$ meshd status\n```\n", "before the first command"),
    ],
)
def test_a_page_that_leaves_something_open_is_an_error(text: str, lacking: str) -> None:
    with pytest.raises(ValueError, match=lacking):
        list(steps(text, ("desk", "garage")))


@pytest.mark.parametrize(
    ("written", "seen", "same"),
    [
        (["up 3 s, 87 MiB"], "up 12 s, 1.5 MiB\n", True),
        (["up 3 s, 87 MiB"], "up 12 s, 1.5 GiB\n", False),
        (["desk  (3ocffl43vx)  serve"], "desk (abcdefghij)   serve\n", True),
        (["desk  (3ocffl43vx)  serve"], "garage (abcdefghij)   serve\n", False),
        (["a …", "b"], "a\nb\n", True),
        (["a … c"], "a b c\n", True),
        (["a … c"], "a b\nc\n", False),
        (["…", "b", "…"], "b\n", True),
        (["…", "b", "…"], "x\ny\nb\nz\n", True),
        (["…", "b", "…"], "x\ny\n", False),
        (["a", "", "b"], "a\n\nb\n", True),
        (["a", "b"], "a\n\nb\n", False),
    ],
)
def test_what_is_seen_is_what_the_page_has(written: list[str], seen: str, same: bool) -> None:
    assert (pattern(written).fullmatch(seen) is not None) is same
