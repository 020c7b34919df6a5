# gdr_exporter as an image: docker build -t gdr-exporter . (README: Permissions and
# containers; deploy/container/README.md has run lines with what each flag is for).
# The base images can be changed, for a mirror or another distribution:
#   --build-arg BUILD_IMAGE=... --build-arg BASE_IMAGE=...
ARG BUILD_IMAGE=golang:1.26-bookworm
# glibc, since the GPU driver's libraries are loaded into the process, and
# rdma-core 54 or later, for the NICs of today.
ARG BASE_IMAGE=debian:trixie-slim

FROM ${BUILD_IMAGE} AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev libibverbs-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=unknown
ARG REVISION=unknown
ARG BRANCH=unknown
# Functions of libraries that are not there at link time are bound when they are
# called: -z lazy. See LAZY in the Makefile.
ENV CGO_ENABLED=1 CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations"
RUN INFO=github.com/prometheus/common/version \
    && go build -trimpath -buildvcs=false -o /gdr_exporter \
      -ldflags "-s -w -X $INFO.Version=$VERSION -X $INFO.Revision=$REVISION -X $INFO.Branch=$BRANCH -extldflags=-Wl,-z,lazy" \
      ./cmd/gdr_exporter

FROM ${BASE_IMAGE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends libibverbs1 ibverbs-providers \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log /var/cache/ldconfig \
      /usr/share/doc/* /usr/share/man/* \
    # For the user below and for a root without capabilities alike; a volume in their
    # place brings its own owner.
    && install -d -o 0 -g 65532 -m 0775 /var/lib/gdr_exporter /run/gdr_exporter
COPY LICENSE /usr/share/doc/gdr_exporter/LICENSE
COPY --from=build /gdr_exporter /usr/bin/gdr_exporter

ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gdr_exporter" \
      org.opencontainers.image.description="Prometheus exporter for the health of RDMA and GPU interconnects" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# For NVIDIA's container runtime: all GPUs, with NVML (utility) and CUDA (compute).
# Of no effect with any other runtime.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=utility,compute

# An ordinary user is enough for all that is read; the run lines and the chart say
# where root in the container is wanted, and why.
USER 65532:65532
EXPOSE 10479
ENTRYPOINT ["/usr/bin/gdr_exporter"]
