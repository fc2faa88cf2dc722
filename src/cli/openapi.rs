//! `leasehold openapi`: the document that `/openapi.json` serves, without a server.

use std::process::ExitCode;

use clap::Command;

use super::print;

pub(super) fn command() -> Command {
    Command::new("openapi").about("Print the OpenAPI document")
}

pub(super) fn run() -> ExitCode {
    print(&document())
}

/// The one place to connect with the document of `http`.
fn document() -> String {
    let document = serde_json::json!({
        "openapi": "3.1.0",
        "info": { "title": "Leasehold", "version": env!("CARGO_PKG_VERSION") },
        "paths": {},
    });
    format!("{document:#}\n")
}
