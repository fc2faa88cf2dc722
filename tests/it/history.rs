//! The history checker.

mod broken;
mod judge;
mod record;
