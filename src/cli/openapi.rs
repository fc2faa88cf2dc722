//! `leasehold openapi`: the document that `/openapi.json` serves, without a server.

use std::process::ExitCode;

use clap::Command;

use super::print;

pub(super) fn command() -> Command {
    Command::new("openapi").about("Print the OpenAPI document")
}

pub(super) fn run() -> ExitCode {
    print(&crate::http::openapi::json())
}
