# A small image that runs evicp: docker build -t evicp . && docker run --rm -v "$PWD:/data" evicp predict cal.safetensors new.npz -o sets.csv
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN python -m venv /opt/evicp && /opt/evicp/bin/pip install --no-cache-dir '.[parquet]'

FROM python:3.13-slim
COPY --from=build /opt/evicp /opt/evicp
RUN useradd --create-home --uid 1000 evicp && mkdir /data && chown evicp /data
USER evicp
WORKDIR /data
ENV PATH="/opt/evicp/bin:$PATH"
ENTRYPOINT ["evicp"]
CMD ["--help"]
