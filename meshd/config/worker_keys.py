"""The settings of a worker: the part of keys.py on `worker`."""

from meshd.config import forms
from meshd.config.forms import listed, whole
from meshd.config.key import Key

WORKER_KEYS: tuple[Key, ...] = (
    Key(
        section="worker",
        field="models",
        form=listed(forms.MODEL, comma=False),
        option="--model",
        metavar="FILE|NAME",
        repeat=True,
        list_separator=":",
        help="local copies of models that heads serve, so that nothing comes from a head: GGUF files, or "
        "names as for `meshd serve`",
        default="download layers from the head",
        more="The worker finds its share of a model's weights there, by content.",
        names_models=True,
    ),
    Key(
        section="worker",
        field="devices",
        form=listed(forms.WORD),
        option="--device",
        metavar="DEV",
        repeat=True,
        list_separator=",",
        help="devices to lend, as `meshd doctor` names them",
        default="all GPUs, else the CPU",
        more='Names are "CPU", "CUDA0", "Metal" and the like.',
    ),
    Key(
        section="worker",
        field="memory",
        form=forms.SIZE,
        option="--memory",
        metavar="SIZE",
        help="maximum memory to lend per device, such as 8G or 512M",
        default="all that is free",
        example='"8G"',
        more='For all heads together. In bytes, or text: "8G", "512M", "1GiB" in powers of '
        '1024, "8GB" in powers of 1000.',
    ),
    Key(
        section="worker",
        field="threads",
        form=whole(1, 1024),
        option="--threads",
        metavar="N",
        help="number of CPU threads to compute with",
        default="half of the processors",
        example="8",
        more="Half is right if each core counts as two processors, else too few (Apple's, ARM's, many "
        "virtual machines).",
    ),
    Key(
        section="worker",
        field="keep_weights",
        form=forms.SIZE_OR_NONE,
        option="--keep-weights",
        metavar="SIZE",
        help="how much of the downloaded weights to keep on disk for later loads; 0 keeps none",
        default="20G",
        example='"20G"',
        more="They are in the cache (`tensors`); the least recently used go first, and half "
        "of the free disk is left free in any case. With 0, what other nodes of this user keep there "
        "stays.",
    ),
    Key(
        section="worker",
        field="fetch_rate",
        form=forms.RATE,
        option="--fetch-rate",
        metavar="RATE",
        help="most that a load takes from members a second, such as 20Mbit or 2.5MB",
        default="no limit",
        example='"200Mbit"',
        more="Of weights that this worker lacks and that members have. What only the head has is sent by it, "
        "with the load.",
    ),
)
