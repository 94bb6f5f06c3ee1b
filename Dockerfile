# All roles of meshd in one image: see docs/docker.md.
#   docker build -t meshd .
#   docker run --rm --init -v meshd:/var/lib/meshd meshd worker

FROM debian:bookworm-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends build-essential ca-certificates python3-venv \
 && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/tools
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY native native
COPY configs configs
COPY meshd meshd
# with cmake and ninja for this stage; without them, and without pip, for the next one
RUN /opt/tools/bin/pip install --no-cache-dir '.[build]' \
 && python3 -m venv --without-pip /opt/meshd \
 && /opt/tools/bin/pip --python /opt/meshd install --no-cache-dir .
# llama.cpp at the pinned commit, and meshd's backend for it, for a common CPU (x86-64 with AVX2, or ARMv8): where
# SOURCE_DATE_EPOCH is set it does not ask what the CPU that compiles can do, and CFLAGS say what there is instead.
# The cache makes the next build of the image short.
RUN --mount=type=cache,target=/var/cache/meshd \
    case $(uname -m) in x86_64) common=-march=x86-64-v3 ;; *) common= ;; esac \
 && export SOURCE_DATE_EPOCH=1735689600 CFLAGS="$common" CXXFLAGS="$common" \
 && MESHD_CACHE=/var/cache/meshd/portable /opt/tools/bin/meshd native build --backend cpu \
 && MESHD_CACHE=/var/cache/meshd/portable /opt/tools/bin/meshd native info --backend cpu --json > /tmp/native.json \
 && python3 -c 'import json; print(*set(json.load(open("/tmp/native.json"))["binaries"].values()), sep="\n")' \
    > /tmp/programs \
 && mkdir -p /opt/native/bin \
 && xargs -a /tmp/programs cp -a -t /opt/native/bin

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates libgomp1 libstdc++6 python3 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --user-group --home-dir /var/lib/meshd --no-create-home meshd \
 && install -d -o meshd -g meshd -m 0700 /var/lib/meshd /var/cache/meshd /run/meshd
COPY --from=build /opt/meshd /opt/meshd
COPY --from=build /opt/native /opt/native
ENV PATH=/opt/meshd/bin:/usr/bin:/bin \
    MESHD_HOME=/var/lib/meshd \
    MESHD_CACHE=/var/cache/meshd \
    MESHD_NATIVE_BIN=/opt/native/bin
USER meshd
# identity and membership of the node; kept weights, which can be made again; files exchanged between containers of one host
VOLUME ["/var/lib/meshd", "/var/cache/meshd", "/run/meshd"]
# mesh, relay, API
EXPOSE 17430/tcp 17430/udp 17443/tcp 17443/udp 8090/tcp
ENTRYPOINT ["meshd"]
CMD ["--help"]
