//! The binary: hands arguments and environment to the command line, which is in the library.

use std::process::ExitCode;

#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place where the environment is read"
)]
fn main() -> ExitCode {
    leasehold::cli::run(std::env::args_os(), std::env::vars_os())
}
