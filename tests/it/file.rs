//! What is particular to the file store: what a restart keeps, and what becomes of a directory that is full, damaged or
//! in use. That it is a store like the others is tested by the contract.

mod copies;
mod crashes;
mod damage;
mod full;
mod power;
mod reserve;
mod restarts;
mod set_back;
mod size;
mod start;

use std::path::Path;

use crate::process::Serving;

/// The URL of the store in a directory.
fn url_of(directory: &Path) -> String {
    format!("file:{}", directory.display())
}

/// A process on a directory.
fn serve(directory: &Path) -> Serving {
    Serving::start(&["--store", &url_of(directory)])
}
