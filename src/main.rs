//! The binary: hands arguments and environment to the command line, which is in the library.

use std::process::ExitCode;

/// Quicker than the system's at what a request allocates, which is small and soon gone; and it keeps its own books apart, so
/// that the part of a buffer of a waiting connection which was never written to takes no memory.
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
