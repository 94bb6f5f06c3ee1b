# All roles of meshd in one image, from the wheels in a folder: see docs/docker.md.
#   docker build -t meshd -f Dockerfile dist
#   docker run --rm --init -v meshd:/var/lib/meshd meshd worker
# GPU=vulkan is for CPUs and all GPUs. GPU=cuda also needs the wheel meshd_native_cuda13 in that folder:
#   docker build --build-arg GPU=cuda -t meshd:cuda -f Dockerfile dist

FROM debian:trixie-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3-venv \
 && rm -rf /var/lib/apt/lists/*
ARG GPU=vulkan
COPY *.whl /wheels/
RUN case "$GPU" in \
      vulkan) rm -f /wheels/meshd_native_cuda* ;; \
      cuda) ls /wheels/meshd_native_cuda13-*.whl ;; \
      *) echo "GPU is vulkan or cuda, not $GPU" >&2; exit 1 ;; \
    esac
# without pip, and without 104 MB of PyAV, which aiortc asks for and meshd does not use (docs/decisions/0078);
# compiled here, as the user of the image cannot write there
RUN python3 -m venv /opt/tools \
 && python3 -m venv --without-pip /opt/meshd \
 && /opt/tools/bin/pip --python /opt/meshd install --no-cache-dir --no-compile --find-links /wheels /wheels/*.whl \
 && /opt/tools/bin/pip --python /opt/meshd uninstall --yes av \
 && echo image > /opt/meshd/packaged-as \
 && python3 -m compileall --invalidation-mode unchecked-hash -q /opt/meshd/lib

FROM debian:trixie-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --user-group --home-dir /var/lib/meshd --no-create-home meshd \
 && install -d -o meshd -g meshd -m 0700 /var/lib/meshd /var/cache/meshd /run/meshd
COPY --from=build /opt/meshd /opt/meshd
# the last two: what `--gpus all` brings along from the host
ENV PATH=/opt/meshd/bin:/usr/bin:/bin \
    MESHD_HOME=/var/lib/meshd \
    MESHD_CACHE=/var/cache/meshd \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,graphics,utility
USER meshd
# identity and membership of the node; kept weights, which can be made again; files exchanged between containers of one host
VOLUME ["/var/lib/meshd", "/var/cache/meshd", "/run/meshd"]
# a node answers its commands; configs/compose.yaml says when a head is ready, and when a relay lives
HEALTHCHECK --interval=30s --timeout=10s --start-period=2m CMD ["meshd", "status"]
# mesh, relay, API
EXPOSE 17430/tcp 17430/udp 17443/tcp 17443/udp 8090/tcp
ENTRYPOINT ["meshd"]
CMD ["--help"]
