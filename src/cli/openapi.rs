//! `leasehold openapi`: prints the document that `/openapi.json` serves, without a server.

use clap::Command;

use super::{Exit, print};

pub(super) fn command() -> Command {
    Command::new("openapi").about("Print the OpenAPI document")
}

pub(super) fn run() -> Exit {
    print(&crate::http::openapi::json())
}
