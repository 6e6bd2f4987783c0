# The processor and the simulated engines in one image; Envoy has its own.
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY extproc extproc
RUN python -m venv /opt/extproc && /opt/extproc/bin/pip install --no-cache-dir .

FROM python:3.12-slim
COPY --from=build /opt/extproc /opt/extproc
ENV PATH=/opt/extproc/bin:$PATH PYTHONUNBUFFERED=1
# Envoy's files, tokenizers from workers, and sockets.
RUN useradd --system --uid 10001 --no-create-home extproc \
    && install -d -o extproc -g extproc /run/extproc /run/extproc/envoy
USER extproc
WORKDIR /run/extproc
ENTRYPOINT ["extproc"]
CMD ["--help"]
