# The image: one binary on a base without shell or package manager, run by a user that is not root.
# docs/how-to/build-the-image.md has the commands, also for a machine that cannot pull these two base images. scripts/image
# builds it there twice, compares, and runs it.

# The builder's tag is the Rust version of rust-toolchain.toml. That file itself is not in the build context: it also asks
# for clippy and rustfmt, which rustup would download here for nothing.
# A release names them with their digests, as image:tag@sha256:…; docs/how-to/build-the-image.md says how to find them.
ARG BUILDER=docker.io/library/rust:1.95.0-bookworm
ARG RUNTIME=gcr.io/distroless/cc-debian12:nonroot

FROM ${BUILDER} AS build
WORKDIR /src
COPY . .
# What /version and the metric leasehold_build_info report as the commit.
ARG REVISION=unknown
# The version is Cargo.toml's. It is an argument because a label cannot be read from the binary; a build in which the two
# differ fails.
ARG VERSION=0.1.0
# The caches outlive this build, and cargo compares times of modification: without `touch`, a checkout older than the last
# build would ship the last build's binary. The paths of source files in panics are those of scripts/release.
RUN --mount=type=cache,id=leasehold-cargo,target=/usr/local/cargo/registry \
    --mount=type=cache,id=leasehold-target,target=/src/target \
    touch src/main.rs src/lib.rs \
 && CARGO_HOME=/usr/local/cargo CARGO_INCREMENTAL=0 \
    RUSTFLAGS="--remap-path-prefix=/usr/local/cargo=/cargo --remap-path-prefix=/src=/leasehold" \
    CFLAGS="-ffile-prefix-map=/usr/local/cargo=/cargo -ffile-prefix-map=/src=/leasehold" \
    LEASEHOLD_REVISION="$REVISION" LEASEHOLD_RUSTC="$(rustc --version | cut -d ' ' -f 2)" \
    cargo build --locked --profile dist --features jemalloc --bin leasehold \
 && cp target/dist/leasehold /leasehold \
 && { [ "$(/leasehold --version)" = "leasehold $VERSION" ] || { echo "VERSION is $VERSION, but Cargo.toml differs" >&2; exit 1; }; }

FROM ${RUNTIME}
COPY --from=build /leasehold /usr/local/bin/leasehold
# Bound to every interface, the server refuses to start without an API key or LEASEHOLD_AUTH=none.
ENV LEASEHOLD_LISTEN=0.0.0.0:7625
EXPOSE 7625
# A number, because Kubernetes' runAsNonRoot cannot judge a name.
USER 65532:65532
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["/usr/local/bin/leasehold", "healthcheck"]
ENTRYPOINT ["/usr/local/bin/leasehold"]
CMD ["serve"]

ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Leasehold" \
      org.opencontainers.image.description="A distributed-lock service over plain HTTP." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
