"""What can be set of a worker: the part of keys.py on `worker`."""

from meshd.config import forms
from meshd.config.forms import listed, whole
from meshd.config.key import Key

WORKER_KEYS: tuple[Key, ...] = (
    Key(
        section="worker",
        field="models",
        form=listed(forms.PATH, comma=False),
        option="--model",
        metavar="FILE",
        roles=("worker",),
        repeat=True,
        list_separator=":",
        help="GGUF file this worker has, may repeat; without one it gets its weights over the mesh",
        more="It reads its share of a model's weights from there, found by content.",
    ),
    Key(
        section="worker",
        field="devices",
        form=listed(forms.WORD),
        option="--device",
        metavar="DEV",
        roles=("worker",),
        repeat=True,
        list_separator=",",
        help="device to lend, as llama.cpp names it, may repeat",
        default="all of the backend",
        more='Names are "CPU", "CUDA0", "Metal" and the like.',
    ),
    Key(
        section="worker",
        field="memory",
        form=forms.SIZE,
        option="--memory",
        metavar="SIZE",
        roles=("worker",),
        help="most memory to lend of each device, such as 8G or 512M",
        default="what is free",
        example='"8G"',
        more='All heads together have no more. It is in bytes, or text: "8G", "512M", "1GiB" in powers of '
        '1024, "8GB" in powers of 1000.',
    ),
    Key(
        section="worker",
        field="threads",
        form=whole(1, 1024),
        option="--threads",
        metavar="N",
        roles=("worker",),
        help="threads that compute where the CPU is lent",
        default="rpc-server's, half of its processors",
        example="8",
        more="Half is right where each core counts as two, too few where it does not (Apple's, ARM's, many "
        "virtual machines).",
    ),
    Key(
        section="worker",
        field="keep_weights",
        form=forms.SIZE_OR_NONE,
        option="--keep-weights",
        metavar="SIZE",
        roles=("worker",),
        help="disk space for weights that came over the mesh, for the next load; 0 keeps none",
        default="20G",
        example='"20G"',
        more="They lie in the cache (`tensors`); those that were not used for longest go first, and half "
        "of the free disk is left free in any case. With 0, what other nodes of this user keep there "
        "stays.",
    ),
)
