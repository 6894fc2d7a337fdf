# lipforge on a CPU, installed from its wheel at the versions of constraints.txt:
#   docker build -t lipforge .
#   docker run --rm -v "$PWD":/workspace lipforge evaluate cifar10-resnet --data cifar10-sample --limit 50
FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
# Where pip finds a torch without CUDA, which is much smaller: --build-arg TORCH_INDEX=URL; by default the usual index.
ARG TORCH_INDEX=""
# Further extras, such as --build-arg 'EXTRAS=[zoo,plots]'.
ARG EXTRAS=""
WORKDIR /install
COPY constraints.txt .
COPY --from=build /wheels ./wheels
RUN python -m pip install --no-cache-dir -c constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch \
    && python -m pip install --no-cache-dir -c constraints.txt "$(ls wheels/*.whl)$EXTRAS" \
    && rm -r wheels constraints.txt \
    && useradd --create-home lipforge
USER lipforge
ENV LIPFORGE_CACHE=/home/lipforge/cache
WORKDIR /workspace
ENTRYPOINT ["lipforge"]
CMD ["--help"]
