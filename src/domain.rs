//! The words of the service, with no I/O: nothing here knows a runtime, a store or a wire format.

pub mod duration;
