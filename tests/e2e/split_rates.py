"""Measure SmolLM2 with each split of configs/, over a worker and a serving node of one thread each.

    python -m tests.e2e.split_rates

Real daemons on this machine, without a distance between them. Printed are medians of `--answers` answers.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from tests.e2e.models import smollm2
from tests.e2e.nodes import Fleet, api_of, model_of, play
from tests.e2e.test_split_configs import CONFIGS, LAYERS

PROMPT, TOKENS = "the " * 300, 64


async def rates(folder: Path, config: str, answers: int) -> tuple[float, float]:
    """Tokens a second of generating, and of the prompt, as llama-server says."""
    async with Fleet(folder) as fleet:
        token, _ = await fleet.workers(smollm2(), options=("--threads", "1"))
        options = ("--config", str(CONFIGS / config), "--", "-t", "1")
        head = await fleet.head(smollm2(), *options, token=token)
        status = await fleet.ready(head)
        assert {part.node: part.layers for part in model_of(status).split if part.layers} == LAYERS[config]
        generated, prompts = [], []
        for number in range(answers):
            body: dict[str, object] = {
                "prompt": f"{number} {PROMPT}",
                "n_predict": TOKENS,
                "ignore_eos": True,
                "cache_prompt": False,
            }
            answer = await api_of(status).ask("POST", "/completion", body)
            timings = answer.body["timings"]
            assert isinstance(timings, dict)
            generated.append(float(timings["predicted_per_second"]))
            prompts.append(float(timings["prompt_per_second"]))
        return statistics.median(generated), statistics.median(prompts)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--answers", type=int, default=5)
    answers = options.parse_args().answers
    for config in LAYERS:
        with tempfile.TemporaryDirectory() as folder:
            generate, prompt = play(rates(Path(folder), config, answers))
        print(f"{config}: {generate:.0f} and {prompt:.0f} tok/s")  # noqa: T201


if __name__ == "__main__":
    main()
