//! The binary: passes arguments and environment to [`leasehold::cli`].

use std::process::ExitCode;

/// Faster than the system allocator for the small, short-lived allocations of a request. It keeps its metadata apart
/// from the data, so the unwritten part of a waiting connection's buffer takes no memory.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place where the environment is read"
)]
fn main() -> ExitCode {
    leasehold::cli::run(std::env::args_os(), std::env::vars_os())
}
