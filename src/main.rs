//! The binary: hands arguments and environment to the command line, which is in the library.

use std::process::ExitCode;

/// Most of what a request allocates is small and soon gone, which the system's allocator is slow at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place where the environment is read"
)]
fn main() -> ExitCode {
    leasehold::cli::run(std::env::args_os(), std::env::vars_os())
}
