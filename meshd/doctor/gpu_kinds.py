"""The kinds of findings about GPUs: why one is not used, and what helps."""

from meshd.doctor.kinds import Kinds, Wording

_NO_GPU = "the node computes without this GPU"


class GpuKind(Kinds):
    """Every kind of finding about a GPU."""

    GPU_UNKNOWN = Wording(
        "error", "gpu", "{why}", "meshd cannot tell whether this machine has a usable GPU", "{remedy}"
    )
    GPU_COMPILES = Wording(
        "ok",
        "gpu",
        "CUDA has no machine code for a GPU of compute capability {capability}: the first start compiles for "
        "some minutes",
    )
    GPU_NOT_IN_CONTAINER = Wording(
        "warning",
        "gpu",
        "this container cannot use the machine's NVIDIA GPU: it has no {missing}",
        _NO_GPU,
        "install nvidia-container-toolkit on the machine and start the container with `--gpus all` "
        "(Kubernetes: with `nvidia.com/gpu` in its limits)",
    )
    GPU_WITHOUT_DRIVER = Wording(
        "warning",
        "gpu",
        "the NVIDIA GPU has no driver",
        _NO_GPU,
        "install NVIDIA's driver 580 or later; {page}",
    )
    GPU_CLOSED = Wording(
        "warning",
        "gpu",
        "this user may not open `{node}`",
        _NO_GPU,
        "check its owner and group: `ls -l {node}`",
    )
    GPU_HIDDEN = Wording(
        "warning",
        "gpu",
        "the NVIDIA GPU is hidden: CUDA_VISIBLE_DEVICES is `{value}`",
        _NO_GPU,
        "unset CUDA_VISIBLE_DEVICES",
    )
    GPU_SILENT_IN_WSL = Wording(
        "warning",
        "gpu",
        "NVIDIA's driver on Windows does not answer in WSL2",
        _NO_GPU,
        "install NVIDIA's driver 580 or later on Windows, and none in WSL2; then run `wsl --shutdown`",
    )
    GPU_DRIVER_INCOMPLETE = Wording(
        "warning",
        "gpu",
        "NVIDIA's driver is incomplete: there is no libcuda.so.1",
        _NO_GPU,
        "install the package of the driver's libraries (Debian: libcuda1; Ubuntu: libnvidia-compute-580)",
    )
    GPU_DRIVER_CHANGED = Wording(
        "warning",
        "gpu",
        "NVIDIA's driver was updated and does not match the running kernel's",
        _NO_GPU,
        "restart the machine",
    )
    GPU_DRIVER_FAILS = Wording(
        "warning",
        "gpu",
        "NVIDIA's driver does not start (CUDA error {error})",
        _NO_GPU,
        "`nvidia-smi` must list the GPU; restart the machine, or install the driver again",
    )
    GPU_OLD = Wording(
        "warning",
        "gpu",
        "the NVIDIA GPU is too old for CUDA 13: its compute capability is {found}, and {needed} is needed",
        _NO_GPU,
        "use Vulkan: `meshd native build --backend vulkan`; or install toolkit 12.8 and run `meshd native "
        "build --backend cuda`",
    )
    GPU_OLD_ON_VULKAN = Wording(
        "warning",
        "gpu",
        "the NVIDIA GPU is too old for CUDA 13: its compute capability is {found}, and {needed} is needed",
        "meshd uses this GPU through Vulkan, mostly slower than CUDA would be",
        "keep Vulkan; or install toolkit 12.8 and run `meshd native build --backend cuda`",
    )
    GPU_DRIVER_OLD = Wording(
        "warning",
        "gpu",
        "NVIDIA's driver {driver} supports CUDA {cuda}, and 13.0 is needed",
        "programs with CUDA 13 do not run on this GPU",
        "install driver 580 or later; or install the toolkit of that version and run `meshd native build "
        "--backend cuda`",
    )
    GPU_DRIVER_OLD_IN_WSL = Wording(
        "warning",
        "gpu",
        "NVIDIA's driver on Windows supports CUDA {cuda}, and 13.0 is needed",
        "programs with CUDA 13 do not run on this GPU",
        "install driver 580 or later on Windows; or install the toolkit of that version and run "
        "`meshd native build --backend cuda`",
    )
    GPU_WITHOUT_CUDA = Wording(
        "warning",
        "gpu",
        "the programs in use have no CUDA: the NVIDIA GPU is not used",
        _NO_GPU,
        "{remedy}",
    )
    GPU_THROUGH_VULKAN = Wording(
        "warning",
        "gpu",
        "the programs in use have no CUDA: the NVIDIA GPU computes through Vulkan",
        "CUDA is faster, above all for prompts",
        "{remedy}",
    )
    GPU_SILENT_ON_VULKAN = Wording(
        "warning",
        "gpu",
        "Vulkan shows no GPU, although NVIDIA's driver works",
        _NO_GPU,
        "its driver for Vulkan may lack X11's libraries: install them (Debian, Ubuntu: libx11-6, libxext6), "
        "or set VK_DRIVER_FILES to a copy of `{file}` with `libEGL_nvidia.so.0` as library; or use CUDA: "
        "{remedy}",
    )
    GPU_NOT_LISTED = Wording(
        "warning",
        "gpu",
        "CUDA shows no GPU, although its driver works",
        _NO_GPU,
        "`meshd native info` names the programs: run `llama-server --list-devices` there for the reason",
    )
    RENDER_NODE_MISSING = Wording(
        "warning",
        "gpu",
        "the GPU has no device file: there is no /dev/dri/renderD128",
        _NO_GPU,
        "install its driver",
    )
    RENDER_NODE_NOT_IN_CONTAINER = Wording(
        "warning",
        "gpu",
        "the GPU has no device file in this container: there is no /dev/dri/renderD128",
        _NO_GPU,
        "start the container with `--device /dev/dri`",
    )
    RENDER_NODE_CLOSED = Wording(
        "warning",
        "gpu",
        "this user may not open `{node}`",
        _NO_GPU,
        "add the user to the group `render`, and log in again",
    )
    VULKAN_FILE_MISSING = Wording(
        "warning",
        "gpu",
        "{variable} names `{file}`, which does not exist",
        _NO_GPU,
        "unset {variable}",
    )
    VULKAN_HIDDEN = Wording(
        "warning",
        "gpu",
        "the GPU may be hidden: GGML_VK_VISIBLE_DEVICES is `{value}`",
        _NO_GPU,
        "unset GGML_VK_VISIBLE_DEVICES",
    )
    VULKAN_SILENT = Wording(
        "warning",
        "gpu",
        "Vulkan shows no GPU, although a driver is installed (`{file}`)",
        _NO_GPU,
        "`vulkaninfo --summary` (Debian, Ubuntu: vulkan-tools) says which library cannot be loaded",
    )
    VULKAN_WITHOUT_DRIVER = Wording(
        "warning",
        "gpu",
        "there is no driver for Vulkan: no file in /usr/share/vulkan/icd.d",
        _NO_GPU,
        "install it (Debian, Ubuntu: mesa-vulkan-drivers)",
    )
    VULKAN_NOT_IN_IMAGE = Wording(
        "warning",
        "gpu",
        "this container has no driver for Vulkan: no file in /usr/share/vulkan/icd.d",
        _NO_GPU,
        "install it in the image (Debian, Ubuntu: mesa-vulkan-drivers)",
    )
