# progfed in a container: `docker build -t progfed .`, then what docs/quickstart.md says.
FROM python:3.11-slim

WORKDIR /progfed
# torch first, in a layer of its own, as in the Makefile: changes of the source do not fetch it again.
# Where the index offers torch with CUDA only, name one with builds for processors:
# `docker build --build-arg PIP_EXTRA_INDEX_URL=… -t progfed .`
ARG PIP_EXTRA_INDEX_URL
COPY constraints.txt ./
RUN pip install --no-cache-dir "$(grep '^torch==' constraints.txt)" -c constraints.txt

COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir . -c constraints.txt

# whoever runs it may write the runs: it need not be root
ENV HOME=/tmp OMP_NUM_THREADS=1
RUN mkdir runs && chmod 777 runs
VOLUME ["/progfed/runs"]
ENTRYPOINT ["progfed"]
CMD ["demo"]
