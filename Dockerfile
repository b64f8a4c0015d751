# docker build -t tilesmith . && docker run --rm -v "$PWD:/out" tilesmith
# With an NVIDIA GPU: docker run --rm --gpus all -v "$PWD:/out" tilesmith
FROM python:3.12-slim AS tools

# gcc and make: Triton compiles its launcher, and `make tour` is the entry.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc g++ git make \
 && rm -rf /var/lib/apt/lists/*

FROM tools

# "cpu" builds a small image for machines without a GPU; leave it empty for PyTorch's CUDA build.
ARG TORCH_BUILD=""
WORKDIR /tilesmith
COPY . .
RUN python -m venv .venv \
 && if [ "$TORCH_BUILD" = cpu ]; then \
      .venv/bin/python -m pip install --no-cache-dir --constraint constraints.txt \
        --index-url https://download.pytorch.org/whl/cpu torch; \
    fi \
 && PIP_NO_CACHE_DIR=1 make setup

ENV PATH="/tilesmith/.venv/bin:$PATH"
CMD ["sh", "-c", "make tour && if [ -d /out ]; then cp tilesmith-tour.html /out/; fi"]
