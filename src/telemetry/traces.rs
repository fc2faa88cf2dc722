//! Traces: what a request did and how long it took, as spans that are sent to a collector by OTLP over HTTP.
//!
//! A request is traced if its caller traces it, which the header `traceparent` says, and a share of the others. Its span is
//! begun by [`Tracer::begin`]. What runs within the request finds it by [`current`], and records what it did as a span below
//! it, once it is done: so nothing has to be passed through the service and the stores. A request that is not traced pays
//! for a few looks at whether it is.
//!
//! Ended spans go into a bounded queue, and a thread of its own encodes and sends them (`exporter`). No request waits for
//! the collector: what it does not take in time is dropped and counted.
//!
//! This is not the SDK of OpenTelemetry. Its queue does not report in our metrics what it drops, it would be sent by a client
//! of ours anyway, and its settings are read from an environment that is read only once here. What would be left of it are
//! random ids, two headers (`context`) and the encoding of one message (`otlp`). The tests read what is sent with the types
//! that OpenTelemetry generates from its definition.
//!
//! The names of attributes belong to those who record them: `http` and the stores.

mod context;
mod exporter;
mod otlp;
mod span;

pub use context::{SpanContext, SpanId, TraceId, TraceParent, TraceState};
pub use exporter::{Exporter, ExporterError};
pub use span::{OpenSpan, SpanKind, SpanRecord, SpanScope, Tracer, current, inherit, within};

/// Whether this binary can send traces. Where it cannot, the compiler leaves out what would record them.
pub const IS_BUILT_IN: bool = cfg!(feature = "otlp");
