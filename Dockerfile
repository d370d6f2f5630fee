# The server's image: `packhorse serve` over /data, without torch, pyarrow or a compiler.
#
# Owns how the server is installed, warmed and started. How it is run (Compose, Kubernetes) is deploy/'s.
# Build with the repository root as context: docker build -t packhorse:0.1.0 .
# To build on a base that nobody can replace: --build-arg PYTHON=python:3.12-slim@sha256:…
# constraints.txt pins versions without hashes: pip takes hashes for all packages or none, and each platform, and torch's own
# index, has other files. To install what you have checked, build with a PIP_INDEX_URL that serves only that.
# With --target prepare it is an image for `packhorse tokenize` and `packhorse prepare` instead.

ARG PYTHON=python:3.12-slim

# --- wheel: builds the one artefact that the later stages take from the sources ---
FROM $PYTHON AS wheel
WORKDIR /src
COPY constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt build hatchling
COPY pyproject.toml README.md LICENSE ./
COPY proto ./proto
COPY server ./server
COPY client ./client
RUN python -m build --wheel --no-isolation --outdir /dist

# --- install: a virtual environment and the compiled kernels ---
FROM $PYTHON AS install
COPY --from=wheel /dist /dist
COPY constraints.txt /dist/
RUN python -m venv /opt/packhorse \
    && /opt/packhorse/bin/pip install --no-cache-dir --constraint /dist/constraints.txt \
        "$(echo /dist/packhorse-*.whl)[server]"
# What is in it, for scanners: CycloneDX, at the same path in the image. The tool stays in this stage.
RUN pip install --no-cache-dir --constraint /dist/constraints.txt cyclonedx-bom \
    && cyclonedx-py environment --output-reproducible --output-file /opt/packhorse/sbom.cdx.json /opt/packhorse/bin/python
# Numba keys its cache by the processor's name and features. The build's processor is not the cluster's, so both are set, here
# and in the runtime's environment: x86-64-v3 is every x86 server since 2013 with AVX2, and as fast as native code here. For
# older ones: --build-arg CPU=generic (a third slower).
# On arm64 (Graviton, Grace, Apple) that is the only choice which suits all; neoverse-n1 also runs on all of these. LLVM does
# not know x86's names there, compiles as for a processor without floating point, and crashes; the build ends before that.
ARG CPU=x86-64-v3
RUN case "$(uname -m) $CPU" in aarch64\ x86*) echo "on arm64, build with --build-arg CPU=generic" >&2; exit 1 ;; esac
RUN NUMBA_CPU_NAME=$CPU NUMBA_CPU_FEATURES="" NUMBA_CACHE_DIR=/var/cache/packhorse /opt/packhorse/bin/python -c \
    "from packhorse.server.base.kernels import compile_kernels; compile_kernels()" \
    && chmod -R g=u /var/cache/packhorse

# --- prepare: an image of its own, for preparing data beside the cluster; docker build --target prepare ---
FROM $PYTHON AS prepare
COPY --from=wheel /dist /dist
COPY constraints.txt /dist/
RUN pip install --no-cache-dir --constraint /dist/constraints.txt "$(echo /dist/packhorse-*.whl)[server,prepare,stores]" \
    && install -d -o 10001 -g 0 -m 775 /data /var/cache/packhorse
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NUMBA_CACHE_DIR=/var/cache/packhorse
USER 10001:10001
VOLUME ["/data", "/var/cache/packhorse"]
ENTRYPOINT ["packhorse"]

# --- runtime ---
FROM $PYTHON
# Which sources it was made from: --build-arg VERSION=0.1.0 --build-arg REVISION=$(git rev-parse HEAD) --build-arg SOURCE=URL
ARG VERSION="" REVISION="" SOURCE=""
LABEL org.opencontainers.image.title="packhorse" \
      org.opencontainers.image.description="Sequence packing as a service for LLM training" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.source="$SOURCE"
RUN groupadd --gid 10001 packhorse \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin packhorse \
    && install -d -o 10001 -g 0 -m 775 /data /var/cache/packhorse
# The path must be the install stage's: it is part of the kernel cache's keys.
COPY --from=install /opt/packhorse /opt/packhorse
COPY --from=install --chown=10001:0 /var/cache/packhorse /var/cache/packhorse
ARG CPU=x86-64-v3
ENV PATH=/opt/packhorse/bin:$PATH \
    NUMBA_CPU_NAME=$CPU \
    NUMBA_CPU_FEATURES="" \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NUMBA_CACHE_DIR=/var/cache/packhorse \
    PACKHORSE_DATA_ROOT=/data \
    PACKHORSE_LISTEN=0.0.0.0:50051 \
    PACKHORSE_METRICS_LISTEN=0.0.0.0:9464 \
    PACKHORSE_GRACE_SECONDS=30 \
    PACKHORSE_MAX_STREAMS=512
# Numeric, so that Kubernetes can see that it is not root. OpenShift takes another user, of group 0.
USER 10001:10001
EXPOSE 50051 9464
# Numba insists on a cache folder that it can write to. As a volume it stays writable, and filled from the image, when
# the root file system is read-only.
VOLUME ["/data", "/var/cache/packhorse"]
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["packhorse", "doctor", "--health", "--target", "127.0.0.1:50051"]
ENTRYPOINT ["packhorse"]
CMD ["serve"]
