"""What llama-server tells of itself, without where the model lies on this machine. Pure."""

import json
import re

PROPS_PATH = "/props"
# Within a JSON string quotation marks are escaped, so no template is taken for the field.
# Never tried another way: to go back over a long string, its matching would keep a hundred times its bytes.
_PATH_OF_MODEL = re.compile(rb'("model_path"\s*:\s*)"(?:[^"\\]++|\\.)*+"', re.DOTALL)


def told_props(body: bytes | bytearray, model: str) -> bytes:
    """These properties with the name of the `model` in place of its path, and otherwise as they are."""
    name = json.dumps(model).encode()
    return bytes(_PATH_OF_MODEL.sub(lambda found: found[1] + name, body))
